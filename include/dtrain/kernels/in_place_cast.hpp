#pragma once
/// @file
/// narrow_in_place(), widen_in_place(): casts between f32 and 16-bit floats within the f32 elements' memory.
/// add_cast_error(): error feedback.

#include <cstddef>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// Rounds `count` f32 elements, each multiplied by `factor`, to f16 or bf16, nearest even, in the first half of their
/// memory.
void narrow_in_place(std::byte* elements, std::size_t count, DType to, float factor) noexcept;

/// Widens `count` elements of f16 or bf16, which lie in the first half of the memory, to f32. Exact.
void widen_in_place(std::byte* elements, std::size_t count, DType from) noexcept;

/// Error feedback: adds `error` to `count` f32 elements. Afterwards `error` is the part of each element that
/// narrow_in_place loses if it divides by `divisor`, in units of the elements; 0 for an element that is not finite in
/// 16 bits. It is exact if divisor times a 16-bit float is.
void add_cast_error(std::byte* elements, float* error, std::size_t count, DType to, float divisor) noexcept;

}  // namespace DTRAIN_NAMESPACE::kernels

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstring>

#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::kernels {

namespace detail {
inline constexpr std::size_t cast_block = 1024;  ///< elements that are converted through memory on the stack

/// At most cast_block elements; `to` may be the memory of `from`.
inline void narrow_block(const std::byte* from, std::byte* to, std::size_t count, DType type, float factor) noexcept {
  alignas(64) std::byte scaled[4 * cast_block];
  std::byte* const target = scaled;
  const double weight = factor;
  Reduction::weighted_sum(DType::f32)({&from, 1}, {&target, 1}, count, &weight);
  convert(DType::f32, scaled, type, to, count);
}
}  // namespace detail

DTRAIN_DEFINED void narrow_in_place(std::byte* elements, std::size_t count, DType to, float factor) noexcept {
  const DefaultFloatEnvironment environment;
  for (std::size_t begin = 0; begin < count; begin += detail::cast_block) {  // halves end before the next block
    const std::size_t block = std::min(detail::cast_block, count - begin);
    detail::narrow_block(elements + 4 * begin, elements + 2 * begin, block, to, factor);
  }
}

DTRAIN_DEFINED void add_cast_error(std::byte* elements, float* error, std::size_t count, DType to,
                                   float divisor) noexcept {
  const DefaultFloatEnvironment environment;
  alignas(64) std::byte halves[2 * detail::cast_block];
  alignas(64) float sent[detail::cast_block];
  for (std::size_t begin = 0; begin < count; begin += detail::cast_block) {
    const std::size_t block = std::min(detail::cast_block, count - begin);
    float* const own = reinterpret_cast<float*>(elements) + begin;
    for (std::size_t i = 0; i < block; ++i) {
      own[i] += error[begin + i];
    }
    detail::narrow_block(elements + 4 * begin, halves, block, to, 1.0F / divisor);
    convert(to, halves, DType::f32, reinterpret_cast<std::byte*>(sent), block);
    for (std::size_t i = 0; i < block; ++i) {
      const float lost = own[i] - divisor * sent[i];
      error[begin + i] = is_finite(lost) ? lost : 0.0F;
    }
  }
}

DTRAIN_DEFINED void widen_in_place(std::byte* elements, std::size_t count, DType from) noexcept {
  const DefaultFloatEnvironment environment;
  alignas(64) std::byte halves[2 * detail::cast_block];
  std::size_t end = count;
  while (end > 0) {  // backwards: a block's result covers only halves that were read before
    const std::size_t block = (end - 1) % detail::cast_block + 1;
    end -= block;
    std::memcpy(halves, elements + 2 * end, 2 * block);
    convert(from, halves, DType::f32, elements + 4 * end, block);
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels

#endif  // DTRAIN_DEFINITIONS
