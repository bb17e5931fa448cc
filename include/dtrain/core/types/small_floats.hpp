#pragma once
/// @file
/// float16, bfloat16, float8_e4m3, float8_e5m2: storage types; conversion from float rounds to nearest even, to float
/// is exact.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// A sign, an exponent, and `digits` bits after the implicit one; no arithmetic. `largest` is the greatest finite
/// value's bits; above it, bits with digits 0 are infinity and all others NaN. The conversions use integers only:
/// results are the same at compile time, under -ffast-math and with flushed subnormals.
/// @param overflow the bits of larger values and of infinity
/// @param nan the bits of every NaN
template <class Bits, std::uint32_t digits, std::uint32_t largest, std::uint32_t overflow, std::uint32_t nan>
struct SmallFloat {
  Bits bits = 0;

  constexpr SmallFloat() noexcept = default;

  /// Rounds to nearest even.
  constexpr explicit SmallFloat(float value) noexcept : bits(rounded(std::bit_cast<std::uint32_t>(value))) {}

  static constexpr SmallFloat from_bits(Bits bits) noexcept {
    SmallFloat value;
    value.bits = bits;
    return value;
  }

  /// Exact.
  constexpr explicit operator float() const noexcept { return std::bit_cast<float>(widened(bits)); }

 private:
  static constexpr std::uint32_t width = 8U * sizeof(Bits);
  static constexpr std::uint32_t bias = (1U << (width - 2U - digits)) - 1U;
  static constexpr std::uint32_t dropped = 23U - digits;      ///< number of a float's digits that are left out
  static constexpr std::uint32_t first_normal = 128U - bias;  ///< the least one's exponent, as a float's
  static constexpr std::uint32_t sign_bit = 1U << (width - 1U);

  static constexpr Bits rounded(std::uint32_t value) noexcept {
    const std::uint32_t sign = value >> (32U - width) & sign_bit;
    const std::uint32_t magnitude = value & 0x7fffffffU;
    const std::uint32_t exponent = magnitude >> 23U;
    if (magnitude > 0x7f800000U) {
      return nan;
    }
    std::uint32_t result = 0;
    if (exponent >= first_normal) {  // a carry out of the digits raises the exponent, as it must
      result = shifted(magnitude - ((first_normal - 1U) << 23U), dropped);
    } else if (exponent + digits + 1U >= first_normal) {  // a multiple of the least subnormal
      result = shifted((magnitude & 0x7fffffU) | 0x800000U, dropped + first_normal - exponent);
    }
    return static_cast<Bits>(sign | (result > largest ? overflow : result));
  }

  /// value / 2^count, to nearest even.
  static constexpr std::uint32_t shifted(std::uint32_t value, std::uint32_t count) noexcept {
    const std::uint32_t below_half = (1U << (count - 1U)) - 1U;
    return (value + below_half + (value >> count & 1U)) >> count;
  }

  static constexpr std::uint32_t widened(std::uint32_t stored) noexcept {
    const std::uint32_t sign = (stored & sign_bit) << (32U - width);
    const std::uint32_t magnitude = stored & (sign_bit - 1U);
    const std::uint32_t fraction = magnitude & ((1U << digits) - 1U);
    if (magnitude > largest) {
      return sign | 0x7f800000U | fraction << dropped;
    }
    if (magnitude != fraction) {
      return sign | (magnitude + ((first_normal - 1U) << digits)) << dropped;
    }
    if (fraction == 0) {
      return sign;
    }
    // The leading 1 moves to the place of the implicit one.
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(fraction)) - (31U - digits);
    return sign | (first_normal - shift) << 23U | (fraction << shift & ((1U << digits) - 1U)) << dropped;
  }
};

}  // namespace detail

/// IEEE 754's 16-bit float, for programs without another 16-bit float. A value beyond the largest finite one (65504)
/// becomes infinity; every NaN becomes 0x7e00. A program with another type (c10::Half, __half, Eigen::half, _Float16)
/// registers it once and passes spans of it; the type must hold the 16 bits and nothing else:
///
///   template <> struct dtrain::dtype_of<c10::Half> : std::integral_constant<dtrain::DType, dtrain::DType::f16> {};
///
/// @ingroup views
using float16 = detail::SmallFloat<std::uint16_t, 10, 0x7bff, 0x7c00, 0x7e00>;

template <>
struct dtype_of<float16> : std::integral_constant<DType, DType::f16> {};

/// The upper half of an f32, for programs without another bfloat16 type; float16 describes how to register another type
/// (c10::BFloat16, __nv_bfloat16, Eigen::bfloat16).
/// @ingroup views
struct bfloat16 {
  std::uint16_t bits = 0;

  constexpr bfloat16() noexcept = default;

  /// Rounds to nearest even; a value beyond the largest finite one becomes infinity. Every NaN becomes 0x7fc0.
  constexpr explicit bfloat16(float value) noexcept : bits(rounded(std::bit_cast<std::uint32_t>(value))) {}

  static constexpr bfloat16 from_bits(std::uint16_t bits) noexcept {
    bfloat16 value;
    value.bits = bits;
    return value;
  }

  /// Exact.
  constexpr explicit operator float() const noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16U); }

 private:
  static constexpr std::uint16_t rounded(std::uint32_t value) noexcept {
    if ((value & 0x7fffffffU) > 0x7f800000U) {
      return 0x7fc0;
    }
    return static_cast<std::uint16_t>((value + 0x7fffU + (value >> 16U & 1U)) >> 16U);
  }
};

template <>
struct dtype_of<bfloat16> : std::integral_constant<DType, DType::bf16> {};

/// Four exponent bits, three digits, no infinity ("e4m3fn"): up to 448, in steps of 2^-9 near 0. A float is rounded to
/// nearest even, and saturates as with CUDA's type and NCCL: larger values and infinity become the largest finite one.
/// Every NaN becomes 0x7f. For programs without another such type; float16 describes how to register one
/// (__nv_fp8_e4m3, c10::Float8_e4m3fn). No backend reduces these; broadcast, all_gather, send and recv move them.
/// Source: OCP 8-bit Floating Point Specification (OFP8), 1.0, 2023.
/// @ingroup views
using float8_e4m3 = detail::SmallFloat<std::uint8_t, 3, 0x7e, 0x7e, 0x7f>;

/// Five exponent bits, two digits, an infinity: up to 57344, in steps of 2^-16 near 0. Otherwise as float8_e4m3.
/// @ingroup views
using float8_e5m2 = detail::SmallFloat<std::uint8_t, 2, 0x7b, 0x7b, 0x7f>;

template <>
struct dtype_of<float8_e4m3> : std::integral_constant<DType, DType::f8e4m3> {};
template <>
struct dtype_of<float8_e5m2> : std::integral_constant<DType, DType::f8e5m2> {};

}  // namespace DTRAIN_NAMESPACE
