#pragma once
/// @file
/// bfloat16: the upper half of a float, without arithmetic; the conversion from float rounds to nearest even, the
/// conversion to float is exact. Programs store gradients in it; hooks::Cast takes it as its 16-bit type.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// The upper half of an f32, for programs without another bfloat16 type; float16.hpp describes how to register another
/// type (c10::BFloat16, __nv_bfloat16, Eigen::bfloat16).
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

}  // namespace DTRAIN_NAMESPACE
