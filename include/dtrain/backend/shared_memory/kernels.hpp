#pragma once
/// @file
/// The inner loops of a reduction: one rounding for each element and step, whatever the compiler's flags.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dtrain/core/dtype.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// `out[i] = a[i] op b[i]` for `count` elements at any alignment; `out` may be `a` or `b`.
using CombineFunction = void (*)(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) noexcept;

/// `values[i] *= 1 / ranks` for `count` elements.
using ScaleFunction = void (*)(std::byte* values, std::size_t count, int ranks) noexcept;

/// A reduction of one element type.
struct Kernels {
  CombineFunction combine = nullptr;
  ScaleFunction scale = nullptr;  ///< after the last rank; null where the operation has none
};

// Explicit vectors: at -O2 these loops run four times as fast as scalar ones, and -ffast-math has nothing to reorder.
// 16 bytes need no target flag; a wider vector gains nothing once the data come from memory.
template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(16)));
  typedef std::int32_t mask __attribute__((vector_size(16)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(16)));
  typedef std::int64_t mask __attribute__((vector_size(16)));
};

/// At any alignment.
template <class T>
typename VectorOf<T>::type load(const std::byte* from) noexcept {
  typename VectorOf<T>::type value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

/// As std::memcpy. Not std::memcpy, because glibc 2.36 copies 2 KiB to 1 MiB with `rep movsb`, which on AMD's Zen takes
/// 15 times as long where the target begins a few bytes later in its page than the source in its own: so does a large
/// vector (16 bytes) beside a mapping (0). Measured: 64 KiB in 21 us, here 1.4 us.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  constexpr std::size_t width = sizeof(VectorOf<float>::type);
  std::size_t i = 0;
  for (; i + 4 * width <= bytes; i += 4 * width) {
    const auto first = load<float>(from + i);
    const auto second = load<float>(from + i + width);
    const auto third = load<float>(from + i + 2 * width);
    const auto fourth = load<float>(from + i + 3 * width);
    std::memcpy(to + i, &first, width);
    std::memcpy(to + i + width, &second, width);
    std::memcpy(to + i + 2 * width, &third, width);
    std::memcpy(to + i + 3 * width, &fourth, width);
  }
  if (i < bytes) {
    std::memcpy(to + i, from + i, bytes - i);
  }
}

/// `chosen` where the mask is set, else `other`.
template <class T>
typename VectorOf<T>::type select(typename VectorOf<T>::mask mask, typename VectorOf<T>::type chosen,
                                  typename VectorOf<T>::type other) noexcept {
  using Mask = typename VectorOf<T>::mask;
  return (typename VectorOf<T>::type)((mask & (Mask)chosen) | (~mask & (Mask)other));
}

template <class T>
struct Sum {
  using Vector = typename VectorOf<T>::type;
  static Vector apply(Vector a, Vector b) noexcept { return a + b; }
};
template <class T>
struct Product {
  using Vector = typename VectorOf<T>::type;
  static Vector apply(Vector a, Vector b) noexcept { return a * b; }
};
/// A NaN on any rank makes the result NaN, as it does in a sum.
template <class T>
struct Min {
  using Vector = typename VectorOf<T>::type;
  static Vector apply(Vector a, Vector b) noexcept { return select<T>((b < a) | (b != b), b, a); }
};
template <class T>
struct Max {
  using Vector = typename VectorOf<T>::type;
  static Vector apply(Vector a, Vector b) noexcept { return select<T>((b > a) | (b != b), b, a); }
};

template <class T, class Operation>
void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) noexcept {
  using Vector = typename VectorOf<T>::type;
  constexpr std::size_t width = sizeof(Vector);
  const std::size_t bytes = count * sizeof(T);
  std::size_t i = 0;
  for (; i + 4 * width <= bytes; i += 4 * width) {
    const Vector first = Operation::apply(load<T>(a + i), load<T>(b + i));
    const Vector second = Operation::apply(load<T>(a + i + width), load<T>(b + i + width));
    const Vector third = Operation::apply(load<T>(a + i + 2 * width), load<T>(b + i + 2 * width));
    const Vector fourth = Operation::apply(load<T>(a + i + 3 * width), load<T>(b + i + 3 * width));
    std::memcpy(out + i, &first, width);
    std::memcpy(out + i + width, &second, width);
    std::memcpy(out + i + 2 * width, &third, width);
    std::memcpy(out + i + 3 * width, &fourth, width);
  }
  for (; i < bytes; i += width) {  // the rest, padded: the same instruction on every element
    const std::size_t part = bytes - i < width ? bytes - i : width;
    Vector left{};
    Vector right{};
    std::memcpy(&left, a + i, part);
    std::memcpy(&right, b + i, part);
    left = Operation::apply(left, right);
    std::memcpy(out + i, &left, part);
  }
}

/// The product with the rounded reciprocal: a vector division costs more than reading the data. Exact for powers of
/// two.
template <class T>
void scale(std::byte* values, std::size_t count, int ranks) noexcept {
  using Vector = typename VectorOf<T>::type;
  constexpr std::size_t width = sizeof(Vector);
  const T factor = T(1) / static_cast<T>(ranks);
  const std::size_t bytes = count * sizeof(T);
  std::size_t i = 0;
  for (; i + width <= bytes; i += width) {
    Vector value;
    std::memcpy(&value, values + i, width);
    value = value * factor;
    std::memcpy(values + i, &value, width);
  }
  if (i < bytes) {
    Vector value{};
    std::memcpy(&value, values + i, bytes - i);
    value = value * factor;
    std::memcpy(values + i, &value, bytes - i);
  }
}

template <class T>
Kernels kernels_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return {&combine<T, Sum<T>>, nullptr};
    case ReduceOp::average: return {&combine<T, Sum<T>>, &scale<T>};
    case ReduceOp::min: return {&combine<T, Min<T>>, nullptr};
    case ReduceOp::max: return {&combine<T, Max<T>>, nullptr};
    case ReduceOp::product: return {&combine<T, Product<T>>, nullptr};
  }
  return {};
}

/// Empty (null combine) for an element type or operation that this backend does not reduce.
inline Kernels kernels_for(DType dtype, ReduceOp op) noexcept {
  switch (dtype) {
    case DType::f32: return kernels_of<float>(op);
    case DType::f64: return kernels_of<double>(op);
    default: return {};
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
