#pragma once
/// @file
/// Casts between f32 and 16-bit floats within the memory of the f32 elements.

#include <cstddef>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// Rounds `count` f32 elements, each multiplied by `factor`, to f16 or bf16, nearest even, in the first half of their
/// memory.
void narrow_in_place(std::byte* elements, std::size_t count, DType to, float factor) noexcept;

/// Widens `count` elements of f16 or bf16, which lie in the first half of the memory, to f32. Exact.
void widen_in_place(std::byte* elements, std::size_t count, DType from) noexcept;

}  // namespace DTRAIN_NAMESPACE::kernels

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstring>

#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::kernels {

namespace detail {
inline constexpr std::size_t cast_block = 1024;  ///< elements that are converted through memory on the stack
}  // namespace detail

DTRAIN_DEFINED void narrow_in_place(std::byte* elements, std::size_t count, DType to, float factor) noexcept {
  const DefaultFloatEnvironment environment;
  alignas(64) std::byte scaled[4 * detail::cast_block];
  std::byte* const target = scaled;
  const double weight = factor;
  for (std::size_t begin = 0; begin < count; begin += detail::cast_block) {
    const std::size_t block = std::min(detail::cast_block, count - begin);
    const std::byte* const source = elements + 4 * begin;
    Reduction::weighted_sum(DType::f32)({&source, 1}, {&target, 1}, block, &weight);
    convert(DType::f32, scaled, to, elements + 2 * begin, block);  // before the next block's elements
  }
}

DTRAIN_DEFINED void widen_in_place(std::byte* elements, std::size_t count, DType from) noexcept {
  const DefaultFloatEnvironment environment;
  alignas(64) std::byte halves[2 * detail::cast_block];
  std::size_t end = count;
  while (end > 0) {  // from the end: a block's result covers only halves that were read before
    const std::size_t block = (end - 1) % detail::cast_block + 1;
    end -= block;
    std::memcpy(halves, elements + 2 * end, 2 * block);
    convert(from, halves, DType::f32, elements + 4 * end, block);
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels

#endif  // DTRAIN_DEFINITIONS
