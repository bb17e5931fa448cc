#pragma once
/// @file
/// float16: IEEE 754's 16-bit float, for storing gradients: no arithmetic, exact conversions.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// IEEE 754's 16-bit float, for programs without another 16-bit float. A program with another type (c10::Half, __half,
/// Eigen::half, _Float16) registers it once and passes spans of it; the type must hold the 16 bits and nothing else:
///
///   template <> struct dtrain::dtype_of<c10::Half> : std::integral_constant<dtrain::DType, dtrain::DType::f16> {};
///
/// The conversions use integers only: results are the same at compile time, under -ffast-math and with flushed
/// subnormals.
/// @ingroup views
struct float16 {
  std::uint16_t bits = 0;

  constexpr float16() noexcept = default;

  /// Rounds to nearest even; a value beyond the largest finite one (65504) becomes infinity. Every NaN becomes 0x7e00.
  constexpr explicit float16(float value) noexcept : bits(rounded(std::bit_cast<std::uint32_t>(value))) {}

  static constexpr float16 from_bits(std::uint16_t bits) noexcept {
    float16 value;
    value.bits = bits;
    return value;
  }

  /// Exact.
  constexpr explicit operator float() const noexcept { return std::bit_cast<float>(widened(bits)); }

 private:
  static constexpr std::uint16_t rounded(std::uint32_t value) noexcept {
    const std::uint32_t sign = value >> 16U & 0x8000U;
    const std::uint32_t magnitude = value & 0x7fffffffU;
    const std::uint32_t exponent = magnitude >> 23U;
    if (magnitude > 0x7f800000U) {
      return 0x7e00;
    }
    std::uint32_t result = 0;
    if (exponent >= 143) {  // 2^16 and more
      result = 0x7c00U;
    } else if (exponent >= 113) {  // normal; a carry out of the digits raises the exponent, as it must
      result = shifted(magnitude - (112U << 23U), 13);
    } else if (exponent >= 102) {  // a multiple of 2^-24
      result = shifted((magnitude & 0x7fffffU) | 0x800000U, 126 - exponent);
    }
    return static_cast<std::uint16_t>(sign | result);
  }

  /// value / 2^digits, to nearest even.
  static constexpr std::uint32_t shifted(std::uint32_t value, std::uint32_t digits) noexcept {
    const std::uint32_t below_half = (1U << (digits - 1U)) - 1U;
    return (value + below_half + (value >> digits & 1U)) >> digits;
  }

  static constexpr std::uint32_t widened(std::uint32_t half) noexcept {
    const std::uint32_t sign = (half & 0x8000U) << 16U;
    const std::uint32_t exponent = half >> 10U & 0x1fU;
    const std::uint32_t digits = half & 0x3ffU;
    if (exponent == 0x1f) {
      return sign | 0x7f800000U | digits << 13U;
    }
    if (exponent != 0) {
      return sign | (exponent + 112U) << 23U | digits << 13U;
    }
    if (digits == 0) {
      return sign;
    }
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(digits)) - 21U;  // to bit 10, the implicit one
    return sign | (113U - shift) << 23U | (digits << shift & 0x3ffU) << 13U;
  }
};

template <>
struct dtype_of<float16> : std::integral_constant<DType, DType::f16> {};

}  // namespace DTRAIN_NAMESPACE
