#pragma once
/// @file
/// hooks::PowerSgd: reduces two thin factors of each gradient matrix instead of the matrix.

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
#include "dtrain/ddp/hooks/hook_ranks.hpp"
#include "dtrain/ddp/hooks/power_sgd_bucket.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

struct PowerSgdOptions {
  int rank = 1;                   ///< rank of the approximation: vectors for each matrix
  std::uint64_t start_after = 0;  ///< steps of plain all-reduces before the first compressed one
  double min_compression = 2;     ///< a matrix is compressed if that makes it at least this much smaller
  std::uint64_t seed = 0;         ///< of the first vectors
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE::hooks {

using ddp::PowerSgdOptions;

/// A GradientHook: `hooks::PowerSgd compression{{.rank = 4}}; DistributedDataParallel ddp{model, group, options,
/// compression};`. An f32 gradient of n rows and m columns travels as (n + m) rank elements. What the approximation
/// leaves out is added to the rank's next gradient (error feedback), and the next approximation begins with this one's
/// vectors (warm start). Other gradients are reduced as they are, in the same two all-reduces of the bucket.
/// Source: T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
/// Distributed Optimization", NeurIPS 2019, algorithms 1 and 2.
/// - Gradients that are not finite stay so in that step; the matrix's errors and vectors then start anew.
/// - Memory: a copy of each compressed gradient on every rank.
/// - A program that starts again from a checkpoint without state() starts with errors of zero.
/// - With a LossScaler errors have the scale of their step: where the scale halves, they then count twice.
/// Lifetime: one model; outlives its wrapper, if it is a variable. Gradients are in host memory.
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
      bucket.channel.all_reduce(all, all, bucket.op, bucket.stream);
      return;
    }
    const double error_factor = bucket.op == ReduceOp::average ? 1.0 : 1.0 / bucket.channel.size();
    const ddp::PowerSgdBucket work{&states_, bucket.gradients, all, error_factor, options_.seed};
    const ddp::CompressedLayout layout = work.layout();
    const BufferView first = bucket.part(0, layout.plain + layout.left);
    const BufferView second = bucket.part(layout.plain, layout.right);
    bucket.compress([work]() noexcept { work.multiply_by_right(); });
    bucket.channel.all_reduce(first, first, bucket.op, bucket.stream);
    bucket.compress([work]() noexcept { work.multiply_by_left(); });
    bucket.channel.all_reduce(second, second, bucket.op, bucket.stream);
    bucket.compress([work]() noexcept { work.decompress(); });
  }

  /// What a checkpoint needs, for save_checkpoint and load_checkpoint: all ranks have the same then. Each rank's errors
  /// become their average, which the gradients still get as a whole.
  /// A training that goes on from the file is bit for bit the one that wrote it, on as many ranks; on another number
  /// it goes on with the same errors.
  /// Collective, blocking: every rank calls it between the same steps, once the model is wrapped, with the wrapper's
  /// group. Lifetime: the views are those of this object. @throws Error (invalid_argument) for a group of another
  /// number of ranks than the wrapper's, in the next step if none has run; the job's first cause
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

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

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
  if (!states_.empty()) {
    throw_error(Errc::invalid_argument, "a hooks::PowerSgd is given to a second model; each model needs its own");
  }
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
