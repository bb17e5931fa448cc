#pragma once
/// @file
/// Matrix products and orthonormal rows in f32, for a hook's low-rank approximation. Rows: a borrowed matrix.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/data/sampler.hpp"
#include "dtrain/kernels/square_root.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A matrix of f32 in row-major order, in borrowed memory.
struct Rows {
  float* data;
  std::size_t rows;
  std::size_t columns;

  float* row(std::size_t i) const noexcept { return data + i * columns; }
};

namespace detail {

/// Sum of squares in f64, because a square of f32 may be beyond f32.
inline double square(const float* values, std::size_t count) noexcept {
  return kernels::sum_of_squares(DType::f32, reinterpret_cast<const std::byte*>(values), count);
}

/// to += factor * from
DTRAIN_OPTIMIZED inline void add_multiple(float* to, const float* from, float factor, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] += factor * from[i];
  }
}

DTRAIN_OPTIMIZED inline void multiply(float* values, float factor, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    values[i] *= factor;
  }
}

}  // namespace detail

/// matrix += `added`; then products(k, i) = row i of `matrix` times row k of `vectors`: `vectors` has matrix.columns
/// columns, `products` has matrix.rows. Reads each matrix once.
inline void add_and_multiply_rows(Rows matrix, const float* added, Rows vectors, Rows products) noexcept {
  for (std::size_t i = 0; i < matrix.rows; ++i) {
    detail::add_multiple(matrix.row(i), added + i * matrix.columns, 1, matrix.columns);
    for (std::size_t k = 0; k < vectors.rows; ++k) {
      products.row(k)[i] = kernels::dot_product<float, 16>(matrix.row(i), vectors.row(k), matrix.columns);
    }
  }
}

/// products(k, j) = column j of `matrix` times row k of `vectors`: `vectors` has matrix.rows columns, `products` has
/// matrix.columns.
inline void multiply_columns(Rows matrix, Rows vectors, Rows products) noexcept {
  std::fill(products.data, products.row(products.rows), 0.0F);
  for (std::size_t i = 0; i < matrix.rows; ++i) {
    for (std::size_t k = 0; k < vectors.rows; ++k) {
      detail::add_multiple(products.row(k), matrix.row(i), vectors.row(k)[i], matrix.columns);
    }
  }
}

/// matrix(i, j) = the sum over k of left(k, i) right(k, j); then rest -= factor * matrix. Writes each matrix once.
inline void multiply_vectors(Rows left, Rows right, Rows matrix, Rows rest, float factor) noexcept {
  for (std::size_t i = 0; i < matrix.rows; ++i) {
    float* const row = matrix.row(i);
    std::fill(row, row + matrix.columns, 0.0F);
    for (std::size_t k = 0; k < left.rows; ++k) {
      detail::add_multiple(row, right.row(k), left.row(k)[i], matrix.columns);
    }
    detail::add_multiple(rest.row(i), row, -factor, matrix.columns);
  }
}

/// Makes the rows orthonormal, by the modified Gram-Schmidt process, twice. A row that depends on the rows before it
/// becomes zero. @returns whether no row became zero
inline bool orthonormalize_rows(Rows vectors) noexcept {
  bool independent = true;
  for (std::size_t k = 0; k < vectors.rows; ++k) {
    float* const row = vectors.row(k);
    const double before = detail::square(row, vectors.columns);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t earlier = 0; earlier < k; ++earlier) {
        const float* const other = vectors.row(earlier);
        detail::add_multiple(row, other, -kernels::dot_product<float, 16>(row, other, vectors.columns),
                             vectors.columns);
      }
    }
    const double square = detail::square(row, vectors.columns);
    // A smaller square is rounding, or has a reciprocal beyond f32. NaN is not zero.
    const bool is_zero = square <= std::max(before * 1e-12, 1e-60);
    independent = independent && !is_zero;
    detail::multiply(row, is_zero ? 0 : static_cast<float>(1 / kernels::square_root(square)), vectors.columns);
  }
  return independent;
}

/// Fills the row with numbers in [-1, 1), determined by `seed`.
inline void fill_randomly(std::span<float> values, std::uint64_t seed) noexcept {
  SplitMix64 generator(seed);
  for (float& value : values) {
    value = static_cast<float>(static_cast<std::int64_t>(generator.next() >> 40) - (1 << 23)) / (1 << 23);
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp
