#pragma once
/// @file
/// KernelArguments: parameters of one reduction kernel: sources, targets, bytes, factors.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// Bit patterns for the keys of min and max, which are ordered as integers; see MinMax.
struct KeyBits {
  std::int64_t flip = 0;       ///< all ones for min: reverses the order
  std::int64_t magnitude = 0;  ///< the bits below a floating-point sign, 0 for integers
  std::int64_t infinity = 0;   ///< a magnitude beyond it is NaN
  std::int64_t greatest = 0;   ///< the result with the greatest key: NaN, or the extreme integer
};

constexpr KeyBits key_bits(DType dtype, bool minimum) noexcept {
  const auto float_key = [minimum](std::int64_t magnitude, std::int64_t infinity, std::int64_t nan) {
    return KeyBits{minimum ? -1 : 0, magnitude, infinity, nan};
  };
  const auto integer_key = [minimum](std::int64_t greatest, std::int64_t base) {
    const std::int64_t flip = minimum ? ~base : base;
    return KeyBits{flip, 0, greatest, greatest ^ flip};
  };
  switch (dtype) {
    case DType::f64: return float_key(0x7fffffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000);
    case DType::f32: return float_key(0x7fffffff, 0x7f800000, 0x7fc00000);
    case DType::f16: return float_key(0x7fff, 0x7c00, 0x7e00);
    case DType::bf16: return float_key(0x7fff, 0x7f80, 0x7fc0);
    case DType::i64: return integer_key(0x7fffffffffffffff, 0);
    case DType::i32: return integer_key(0x7fffffff, 0);
    case DType::u64: return integer_key(0x7fffffffffffffff, std::numeric_limits<std::int64_t>::min());
    case DType::u32: return integer_key(0x7fffffff, -0x80000000LL);
    case DType::u8: return integer_key(0x7f, -0x80);
    case DType::f8e4m3:
    case DType::f8e5m2: break;
  }
  return {};
}

/// One reduction. Requires at least one source and one target, and `bytes` a multiple of `granularity`.
struct KernelArguments {
  static constexpr std::size_t max_sources = 256;
  static constexpr std::size_t granularity = 256;  ///< a multiple of every kernel's block

  const std::byte* const* sources = nullptr;
  std::size_t source_count = 0;
  std::byte* const* targets = nullptr;
  std::size_t target_count = 0;
  std::size_t bytes = 0;
  std::size_t divisor = 1;          ///< an average's divisor
  double factor = 1;                ///< a floating-point result's factor
  const double* weights = nullptr;  ///< one factor for each source, if the kernel weighs them
  KeyBits key;
};

using Kernel = void (*)(const KernelArguments&) noexcept;

}  // namespace DTRAIN_NAMESPACE::kernels
