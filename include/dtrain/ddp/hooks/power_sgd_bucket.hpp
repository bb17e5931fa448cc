#pragma once
/// @file
/// PowerSgdBucket: the work of hooks::PowerSgd on one bucket, between its all-reduces.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A gradient as a matrix: its first extent, and all others as one.
struct CompressedGradient {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 0;      ///< 0: the gradient is not compressed
  std::int64_t steps = 0;    ///< reductions begun
  std::vector<float> error;  ///< what this rank's steps have not passed on; rows x columns
  std::vector<float> left;   ///< P: rank x rows
  std::vector<float> right;  ///< Q: rank x columns; the next step begins with it

  /// Rows of `right` that are zero, as in the first step, become random ones: the same on all ranks.
  void make_right_orthonormal(std::uint64_t seed) noexcept;
  /// Whether the product of the factors, the same on all ranks, is finite.
  bool is_in_range() const noexcept;
};

/// Elements of a bucket while its gradients are compressed: those that are not, then P's, then, in their place, Q's.
struct CompressedLayout {
  std::size_t plain = 0;
  std::size_t left = 0;
  std::size_t right = 0;
};

/// Work on one bucket. Threads: the stream's.
struct PowerSgdBucket {
  std::vector<CompressedGradient>* states;  ///< by parameter
  std::span<const BucketGradient> gradients;
  BufferView values;
  double error_factor;  ///< what a reduced gradient counts as in this rank's error
  std::uint64_t seed;

  CompressedLayout layout() const noexcept;

  /// error += gradient. Then values has the gradients that are not compressed, and behind them P = error Q.
  void multiply_by_right() const noexcept;
  /// Takes the reduced P, makes it orthonormal, and puts Q = error^T P in its place.
  void multiply_by_left() const noexcept;
  /// Takes the reduced Q, and writes the gradients P Q^T; error -= P Q^T.
  void decompress() const noexcept;

 private:
  CompressedGradient& state(const BucketGradient& gradient) const noexcept { return (*states)[gradient.parameter]; }
  float* elements() const noexcept { return reinterpret_cast<float*>(values.data); }
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstring>

#include "dtrain/ddp/data/shuffle.hpp"
#include "dtrain/ddp/hooks/low_rank.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline Rows error_rows(CompressedGradient& one) noexcept {
  return {one.error.data(), one.rows, one.columns};
}
inline Rows left_rows(CompressedGradient& one) noexcept {
  return {one.left.data(), one.rank, one.rows};
}
inline Rows right_rows(CompressedGradient& one) noexcept {
  return {one.right.data(), one.rank, one.columns};
}

}  // namespace detail

DTRAIN_DEFINED CompressedLayout PowerSgdBucket::layout() const noexcept {
  CompressedLayout layout;
  for (const BucketGradient& gradient : gradients) {
    const CompressedGradient& one = state(gradient);
    layout.plain += one.rank == 0 ? gradient.view.flat().count : 0;
    layout.left += one.rank * one.rows;
    layout.right += one.rank * one.columns;
  }
  return layout;
}

DTRAIN_DEFINED void CompressedGradient::make_right_orthonormal(std::uint64_t seed) noexcept {
  const Rows vectors = detail::right_rows(*this);
  for (std::uint64_t attempt = 0; !orthonormalize_rows(vectors) && attempt < 4; ++attempt) {
    for (std::size_t k = 0; k < rank; ++k) {
      const std::span<float> row(vectors.row(k), columns);
      if (detail::square(row.data(), columns) == 0) {
        fill_randomly(row, mix64(mix64(mix64(seed) + static_cast<std::uint64_t>(steps)) + 4 * k + attempt));
      }
    }
  }
}

DTRAIN_DEFINED bool CompressedGradient::is_in_range() const noexcept {
  const double sum = detail::square(right.data(), right.size());
  return kernels::is_finite(sum) && sum < 1e70;  // products with orthonormal rows are below 1e35
}

DTRAIN_DEFINED void PowerSgdBucket::multiply_by_right() const noexcept {
  const kernels::DefaultFloatEnvironment environment;
  for (const BucketGradient& gradient : gradients) {
    if (CompressedGradient& one = state(gradient); one.rank != 0) {
      one.make_right_orthonormal(seed + gradient.parameter);
      add_and_multiply_rows(detail::error_rows(one), reinterpret_cast<const float*>(gradient.view.data),
                            detail::right_rows(one), detail::left_rows(one));
    }
  }
  float* to = elements();  // in the order of the bucket, so that no gradient is overwritten before it has moved
  for (const BucketGradient& gradient : gradients) {
    if (state(gradient).rank == 0 && gradient.view.bytes() != 0) {
      std::memmove(to, gradient.view.data, gradient.view.bytes());
      to += gradient.view.flat().count;
    }
  }
  for (const BucketGradient& gradient : gradients) {
    const std::vector<float>& left = state(gradient).left;
    to = std::copy(left.begin(), left.end(), to);
  }
}

DTRAIN_DEFINED void PowerSgdBucket::multiply_by_left() const noexcept {
  const kernels::DefaultFloatEnvironment environment;
  const CompressedLayout sizes = layout();
  const float* reduced = elements() + sizes.plain;
  for (const BucketGradient& gradient : gradients) {
    CompressedGradient& one = state(gradient);
    std::copy_n(reduced, one.left.size(), one.left.begin());
    reduced += one.left.size();
    orthonormalize_rows(detail::left_rows(one));
  }
  float* to = elements() + sizes.plain;
  for (const BucketGradient& gradient : gradients) {
    CompressedGradient& one = state(gradient);
    multiply_columns(detail::error_rows(one), detail::left_rows(one), {to, one.rank, one.columns});
    to += one.right.size();
  }
}

DTRAIN_DEFINED void PowerSgdBucket::decompress() const noexcept {
  const kernels::DefaultFloatEnvironment environment;
  const float* from = elements() + layout().plain;
  for (const BucketGradient& gradient : gradients) {
    CompressedGradient& one = state(gradient);
    std::copy_n(from, one.right.size(), one.right.begin());
    from += one.right.size();
  }
  const std::byte* plain_end = values.data + layout().plain * sizeof(float);
  std::byte* padding_end = values.data + values.count * sizeof(float);
  for (auto gradient = gradients.rbegin(); gradient != gradients.rend(); ++gradient) {  // none is overwritten unread
    const TensorView& view = gradient->view;
    if (state(*gradient).rank == 0 && view.bytes() != 0) {
      plain_end -= view.bytes();
      std::memmove(view.data, plain_end, view.bytes());
    }
  }
  for (auto gradient = gradients.rbegin(); gradient != gradients.rend(); ++gradient) {
    const TensorView& view = gradient->view;
    if (view.bytes() == 0) continue;  // it is not in the bucket
    std::byte* const end = view.data + view.bytes();
    std::memset(end, 0, static_cast<std::size_t>(padding_end - end));
    padding_end = view.data;
    if (CompressedGradient& one = state(*gradient); one.rank != 0) {
      const Rows reduced{reinterpret_cast<float*>(view.data), one.rows, one.columns};
      multiply_vectors(detail::left_rows(one), detail::right_rows(one), reduced, detail::error_rows(one),
                       static_cast<float>(error_factor));
      if (!one.is_in_range()) {
        std::fill(one.error.begin(), one.error.end(), 0.0F);
        std::fill(one.right.begin(), one.right.end(), 0.0F);
      }
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
