#pragma once
/// @file
/// first_not_finite(): the first infinite or NaN element of floats in host memory, under any compiler flags.

#include <cstddef>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// @returns the index of the first element that is infinite or NaN; `count` if there is none, and for whole numbers.
/// At any alignment. Threads: any.
std::size_t first_not_finite(DType dtype, const std::byte* from, std::size_t count) noexcept;

/// Whether the element, which is not finite, is NaN.
bool is_nan(DType dtype, const std::byte* element) noexcept;

}  // namespace DTRAIN_NAMESPACE::kernels

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace DTRAIN_NAMESPACE::kernels {

namespace detail {

/// A type of floats as whole numbers: `exponent` has the bits that are all set in infinities and NaNs.
template <class Bits_, Bits_ exponent_>
struct FloatBits {
  using Bits = Bits_;
  static constexpr Bits exponent = exponent_;
  static constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  static constexpr Bits lowest = static_cast<Bits>(exponent & (~exponent + 1));

  static Bits load(const std::byte* from, std::size_t index) noexcept {
    Bits bits;
    std::memcpy(&bits, from + index * sizeof(Bits), sizeof(Bits));
    return static_cast<Bits>(bits & static_cast<Bits>(~sign));
  }

  /// Has the sign bit if and only if the exponent's bits are all set: then the sum carries into it.
  static Bits marked(Bits magnitude) noexcept { return static_cast<Bits>(magnitude + lowest); }

  /// Blocks that stay in the first cache are read again where one has such an element.
  DTRAIN_OPTIMIZED static std::size_t first(const std::byte* from, std::size_t count) noexcept {
    constexpr std::size_t block = 4096 / sizeof(Bits);
    for (std::size_t begin = 0; begin < count; begin += block) {
      const std::size_t end = std::min(begin + block, count);
      Bits any = 0;
      for (std::size_t i = begin; i < end; ++i)
        any = static_cast<Bits>(any | marked(load(from, i)));
      if ((any & sign) == 0) continue;
      std::size_t i = begin;
      while ((marked(load(from, i)) & sign) == 0)
        ++i;
      return i;
    }
    return count;
  }
};

template <class F>
auto with_float_bits(DType dtype, F&& f) -> decltype(f(FloatBits<std::uint32_t, 0x7f800000U>{})) {
  switch (dtype) {
    case DType::f64: return f(FloatBits<std::uint64_t, 0x7ff0000000000000U>{});
    case DType::f32: return f(FloatBits<std::uint32_t, 0x7f800000U>{});
    case DType::f16: return f(FloatBits<std::uint16_t, 0x7c00U>{});
    case DType::bf16: return f(FloatBits<std::uint16_t, 0x7f80U>{});
    default: return {};
  }
}

}  // namespace detail

DTRAIN_DEFINED std::size_t first_not_finite(DType dtype, const std::byte* from, std::size_t count) noexcept {
  const std::size_t before =
      detail::with_float_bits(dtype, [&](auto bits) { return count - decltype(bits)::first(from, count); });
  return count - before;
}

DTRAIN_DEFINED bool is_nan(DType dtype, const std::byte* element) noexcept {
  return detail::with_float_bits(dtype, [&](auto bits) {
    using Float = decltype(bits);
    return Float::load(element, 0) > Float::exponent;
  });
}

}  // namespace DTRAIN_NAMESPACE::kernels

#endif  // DTRAIN_DEFINITIONS
