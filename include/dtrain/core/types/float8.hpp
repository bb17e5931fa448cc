#pragma once
/// @file
/// float8_e4m3 and float8_e5m2 of the Open Compute Project, for storing gradients: no arithmetic, exact conversions.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// A sign, an exponent, and `digits` bits after the implicit one. `largest` is the greatest finite value's bits; above
/// it, bits with digits 0 are infinity and all others NaN.
template <std::uint32_t digits, std::uint32_t largest>
struct Float8Format {
  static constexpr std::uint32_t bias = (1U << (6U - digits)) - 1U;
  static constexpr std::uint32_t dropped = 23U - digits;      ///< of a float's digits
  static constexpr std::uint32_t first_normal = 128U - bias;  ///< the least one's exponent, as a float's

  static constexpr std::uint8_t rounded(std::uint32_t value) noexcept {
    const std::uint32_t sign = value >> 24U & 0x80U;
    const std::uint32_t magnitude = value & 0x7fffffffU;
    const std::uint32_t exponent = magnitude >> 23U;
    if (magnitude > 0x7f800000U) {
      return 0x7f;
    }
    std::uint32_t result = 0;
    if (exponent >= first_normal) {  // a carry out of the digits raises the exponent, as it must
      result = shifted(magnitude - ((first_normal - 1U) << 23U), dropped);
    } else if (exponent + digits + 1U >= first_normal) {  // a multiple of the least subnormal
      result = shifted((magnitude & 0x7fffffU) | 0x800000U, dropped + first_normal - exponent);
    }
    return static_cast<std::uint8_t>(sign | (result < largest ? result : largest));
  }

  static constexpr std::uint32_t widened(std::uint32_t bits) noexcept {
    const std::uint32_t sign = (bits & 0x80U) << 24U;
    const std::uint32_t magnitude = bits & 0x7fU;
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
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(fraction)) - (31U - digits);  // to the implicit one
    return sign | (first_normal - shift) << 23U | (fraction << shift & ((1U << digits) - 1U)) << dropped;
  }

 private:
  /// value / 2^count, to nearest even.
  static constexpr std::uint32_t shifted(std::uint32_t value, std::uint32_t count) noexcept {
    const std::uint32_t below_half = (1U << (count - 1U)) - 1U;
    return (value + below_half + (value >> count & 1U)) >> count;
  }
};

/// The type of a format; no arithmetic.
template <class Format>
struct Float8 {
  std::uint8_t bits = 0;

  constexpr Float8() noexcept = default;

  /// Rounds to nearest even, and saturates as CUDA's type and NCCL do: larger values and infinity become the largest
  /// finite one. Every NaN becomes 0x7f.
  constexpr explicit Float8(float value) noexcept : bits(Format::rounded(std::bit_cast<std::uint32_t>(value))) {}

  static constexpr Float8 from_bits(std::uint8_t bits) noexcept {
    Float8 value;
    value.bits = bits;
    return value;
  }

  /// Exact.
  constexpr explicit operator float() const noexcept { return std::bit_cast<float>(Format::widened(bits)); }
};

}  // namespace detail

/// Four exponent bits, three digits, no infinity ("e4m3fn"): up to 448, in steps of 2^-9 near 0. For programs without
/// another such type; float16.hpp describes how to register one (__nv_fp8_e4m3, c10::Float8_e4m3fn). Source: OCP 8-bit
/// Floating Point Specification (OFP8), 1.0, 2023.
/// @ingroup views
using float8_e4m3 = detail::Float8<detail::Float8Format<3, 0x7e>>;

/// Five exponent bits, two digits, an infinity: up to 57344, in steps of 2^-16 near 0. Otherwise as float8_e4m3.
/// @ingroup views
using float8_e5m2 = detail::Float8<detail::Float8Format<2, 0x7b>>;

template <>
struct dtype_of<float8_e4m3> : std::integral_constant<DType, DType::f8e4m3> {};
template <>
struct dtype_of<float8_e5m2> : std::integral_constant<DType, DType::f8e5m2> {};

}  // namespace DTRAIN_NAMESPACE
