#pragma once
/// @file
/// hooks::PowerSgd: gradient hook that reduces two thin factors of each gradient matrix. PowerSgdBucket: its work on
/// one bucket.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/hooks/hook_state.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A gradient as a matrix. The first extent is the number of rows; the product of all others, of columns.
struct CompressedGradient {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 0;      ///< 0: the gradient is not compressed
  std::int64_t steps = 0;    ///< reductions begun
  std::vector<float> error;  ///< residual: the part that this rank has not sent; rows x columns
  std::vector<float> left;   ///< P: rank x rows
  std::vector<float> right;  ///< Q: rank x columns; the next step begins with it

  /// Makes the rows of `right` orthonormal. Zero rows, as in the first step, become random rows, equal on all ranks.
  void make_right_orthonormal(std::uint64_t seed) noexcept;
  /// Whether the product of the factors, which is equal on all ranks, is finite.
  bool is_in_range() const noexcept;
};

/// Numbers of elements in a bucket during compression: uncompressed gradients, P, and Q, which replaces P.
struct CompressedLayout {
  std::size_t plain = 0;
  std::size_t left = 0;
  std::size_t right = 0;
};

/// Work on one bucket. Threads: the stream's thread.
struct PowerSgdBucket {
  std::vector<CompressedGradient>* states;  ///< states by parameter
  std::span<const BucketGradient> gradients;
  BufferView values;
  double error_factor;  ///< factor of a reduced gradient that is subtracted from the error
  std::uint64_t seed;

  CompressedLayout layout() const noexcept;

  /// error += gradient. Writes the uncompressed gradients to `values`, followed by P = error Q.
  void multiply_by_right() const noexcept;
  /// Takes the reduced P, makes it orthonormal, and puts Q = error^T P in its place.
  void multiply_by_left() const noexcept;
  /// Takes the reduced Q, and writes the gradients P Q^T; error -= P Q^T.
  void decompress() const noexcept;

 private:
  CompressedGradient& state(const BucketGradient& gradient) const noexcept { return (*states)[gradient.parameter]; }
  float* elements() const noexcept { return reinterpret_cast<float*>(values.data); }
};

/// Options of hooks::PowerSgd. The same on every rank.
/// @ingroup hooks
struct PowerSgdOptions {
  int rank = 1;                   ///< rank of the approximation: vectors for each matrix
  std::uint64_t start_after = 0;  ///< steps of plain all-reduces before the first compressed one
  double min_compression = 2;     ///< a matrix is compressed if its factors are more than this many times smaller
  std::uint64_t seed = 0;         ///< seed of the first vectors
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE::hooks {

using ddp::PowerSgdOptions;

/// A GradientHook that sends two thin factors of each gradient matrix.
/// `hooks::PowerSgd hook{{.rank = 4}}; DistributedDataParallel ddp{model, group, options, std::ref(hook)};`.
/// An f32 gradient of n rows and m columns travels as (n + m) rank elements. The residual of the approximation is added
/// to the rank's next gradient (error feedback). The next approximation begins with the vectors of the last one (warm
/// start). Other gradients are reduced as they are, in the same two all-reduces of the bucket.
/// Source: T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
/// Distributed Optimization", NeurIPS 2019, algorithms 1 and 2.
/// - Gradients that are not finite stay so in their step. After the step the matrix's residuals and vectors restart at
/// zero.
/// - Memory: a copy of each compressed gradient on every rank.
/// - A program that starts again from a checkpoint without state() starts with residuals of zero.
/// - With a LossScaler residuals have the scale of their step; after the scale halves, they count twice.
/// Lifetime: one model. A hook given as std::ref(hook) outlives its wrapper. Gradients are in host memory.
/// @ingroup hooks
class PowerSgd {
 public:
  /// @throws Error (invalid_argument) for a rank or a min_compression below 1
  explicit PowerSgd(PowerSgdOptions options = {});

  PowerSgd(PowerSgd&&) noexcept = default;
  PowerSgd& operator=(PowerSgd&&) = delete;

  std::string description() const;
  void prepare(std::span<const Parameter> parameters);

  /// Whether steps compress this parameter's gradient, once start_after steps have passed.
  bool compresses(std::size_t parameter) const { return states_.at(parameter).rank != 0; }

  template <class C>
  void reduce(const ddp::GradientBucket<C>& bucket) {
    static_assert(ddp::RunsHostWork<typename C::Stream>,
                  "dtrain: hooks::PowerSgd runs on the host: use it with a backend of host memory");
    const BufferView& all = bucket.values;
    ranks_.step_is_for("hooks::PowerSgd", bucket.channel.size());
    if (!begin_step(bucket.gradients)) {
      bucket.channel.enqueue(backend::AllReduce{all, all, bucket.op}, bucket.stream);
      return;
    }
    const double error_factor = bucket.op == ReduceOp::average ? 1.0 : 1.0 / bucket.channel.size();
    const ddp::PowerSgdBucket work{&states_, bucket.gradients, all, error_factor, options_.seed};
    const ddp::CompressedLayout layout = work.layout();
    const BufferView first = bucket.part(0, layout.plain + layout.left);
    const BufferView second = bucket.part(layout.plain, layout.right);
    bucket.compress([work]() noexcept { work.multiply_by_right(); });
    bucket.channel.enqueue(backend::AllReduce{first, first, bucket.op}, bucket.stream);
    bucket.compress([work]() noexcept { work.multiply_by_left(); });
    bucket.channel.enqueue(backend::AllReduce{second, second, bucket.op}, bucket.stream);
    bucket.compress([work]() noexcept { work.decompress(); });
  }

  /// State for save_checkpoint and load_checkpoint, with the conditions and errors of Cast::state(). On another number
  /// of ranks the residuals are the same. Collective, blocking. Lifetime: the views refer to this object.
  template <class Group>
  std::vector<ddp::NamedTensor> state(const Group& group) {
    ranks_.state_is_for("hooks::PowerSgd", group.world_size());
    for (ddp::CompressedGradient& one : states_) {
      if (one.rank != 0) {
        group.all_reduce_without_cast(std::span<float>(one.error.data(), one.error.size()), ReduceOp::average);
      }
    }
    return tensors();
  }

 private:
  std::vector<ddp::NamedTensor> tensors();

  /// Counts a step. @returns whether it compresses a gradient of the bucket
  bool begin_step(std::span<const ddp::BucketGradient> gradients) noexcept;

  PowerSgdOptions options_;
  std::vector<ddp::CompressedGradient> states_;
  ddp::HookRanks ranks_;
};

}  // namespace DTRAIN_NAMESPACE::hooks

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstring>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/data/sampler.hpp"
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
  float* to = elements();  // gradients move in the bucket's order: none is overwritten before it has moved
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
    if (view.bytes() == 0) continue;  // the gradient is not in the bucket
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

namespace DTRAIN_NAMESPACE::hooks {

DTRAIN_DEFINED PowerSgd::PowerSgd(PowerSgdOptions options) : options_(options) {
  if (options.rank < 1 || !(options.min_compression >= 1)) {
    throw_error(Errc::invalid_argument, "hooks::PowerSgd has rank {} and min_compression {}; both are at least 1",
                {options.rank, options.min_compression});
  }
}

DTRAIN_DEFINED std::string PowerSgd::description() const {
  return format_text("hooks::PowerSgd with rank {}, start_after {}, min_compression {}, seed {}",
                     {options_.rank, options_.start_after, options_.min_compression, options_.seed});
}

DTRAIN_DEFINED void PowerSgd::prepare(std::span<const Parameter> parameters) {
  if (!states_.empty()) ddp::refuse_second_model("hooks::PowerSgd");
  for (const Parameter& parameter : parameters) {
    ddp::CompressedGradient& state = states_.emplace_back();
    const std::span<const std::int64_t> extents = parameter.gradient.shape.extents();
    const std::size_t count = parameter.gradient.flat().count;
    if (parameter.gradient.dtype != DType::f32 || extents.size() < 2 || count == 0) continue;
    const auto rows = static_cast<std::size_t>(extents[0]);
    const std::size_t columns = count / rows;
    const std::size_t rank = std::min({static_cast<std::size_t>(options_.rank), rows, columns});
    const auto sent = static_cast<double>((rows + columns) * rank);
    if (sent * options_.min_compression >= static_cast<double>(count)) continue;
    state = {rows, columns, rank, 0, {}, {}, {}};
    state.error.resize(count);
    state.left.resize(rank * rows);
    state.right.resize(rank * columns);
  }
}

DTRAIN_DEFINED std::vector<ddp::NamedTensor> PowerSgd::tensors() {
  std::vector<ddp::NamedTensor> all;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    ddp::CompressedGradient& one = states_[i];
    if (one.rank == 0) continue;
    all.push_back({format_text("power_sgd/{}/steps", {i}), tensor_view(&one.steps, {})});
    all.push_back({format_text("power_sgd/{}/error", {i}), tensor_view(one.error)});
    all.push_back({format_text("power_sgd/{}/right", {i}), tensor_view(one.right)});
  }
  return all;
}

DTRAIN_DEFINED bool PowerSgd::begin_step(std::span<const ddp::BucketGradient> gradients) noexcept {
  bool compresses = false;
  for (const ddp::BucketGradient& gradient : gradients) {
    ddp::CompressedGradient& state = states_[gradient.parameter];
    compresses = compresses || (state.rank != 0 && static_cast<std::uint64_t>(state.steps) >= options_.start_after);
    ++state.steps;
  }
  return compresses;
}

}  // namespace DTRAIN_NAMESPACE::hooks

#endif  // DTRAIN_DEFINITIONS
