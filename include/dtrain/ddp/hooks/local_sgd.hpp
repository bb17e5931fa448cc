#pragma once
/// @file
/// hooks::LocalSgd: steps without communication, and averaged weights every few steps.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/hooks/hook_ranks.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::hooks {

struct LocalSgdOptions {
  std::uint64_t every = 8;        ///< steps from one averaging to the next
  std::uint64_t start_after = 0;  ///< steps whose gradients are reduced, before the local ones
};

/// A GradientHook for post-local SGD: after `start_after` steps a rank keeps its own gradients and updates its own
/// weights by them, and every `every` steps the weights of all ranks are averaged.
///
///   dtrain::hooks::LocalSgd local{{.every = 8, .start_after = 100}};
///   dtrain::DistributedDataParallel ddp{model, group, {}, local};
///   ddp.backward(f);
///   sgd.step(model);
///   local.average(group);   // after each step of the optimizer
///   ...
///   local.average_now(group);   // after the last step: all ranks have the same weights
///
/// Source: T. Lin, S. U. Stich, K. K. Patel and M. Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
/// - Between two averages the ranks' weights differ: evaluate after average_now(), and take checkpoints with state().
/// - StepOptions::measure_norm then gives the norm of this rank's gradients, and LossScaler may decide otherwise on
///   another rank: use bf16 or f32.
/// - The optimizer's state and the buffers stay those of each rank.
/// Lifetime: one model, which outlives it; outlives its wrapper. Threads: those of the steps.
class LocalSgd {
 public:
  /// @throws Error (invalid_argument) if `every` is 0
  explicit LocalSgd(LocalSgdOptions options = {});

  std::string description() const;

  /// Remembers the weights, and makes the memory in which small ones are averaged together.
  void prepare(std::span<const Parameter> parameters);

  template <class C>
  void reduce(const ddp::GradientBucket<C>& bucket) {
    ranks_.step_is_for("hooks::LocalSgd", bucket.channel.size());
    if (steps() < options_.start_after) {
      bucket.channel.all_reduce(bucket.values, bucket.values, bucket.op, bucket.stream);
    }
  }

  /// Counts a step, and averages the weights if it is the turn. Collective, blocking: every rank calls it after each
  /// step of its optimizer. @returns whether it averaged @throws the job's first cause
  template <class Group>
  bool average(const Group& group) {
    ++steps_;
    const bool is_turn = steps() > options_.start_after && (steps() - options_.start_after) % options_.every == 0;
    if (is_turn) {
      average_now(group);
    }
    return is_turn;
  }

  /// Averages the weights. Collective, blocking. @throws the job's first cause
  template <class Group>
  void average_now(const Group& group) const {
    for (const Joined& joined : joined_) {
      const BufferView memory = gather(joined);
      group.all_reduce_without_cast(memory, ReduceOp::average);
      scatter(joined, memory.data);
    }
  }

  /// Calls of average() so far, the same on all ranks.
  std::uint64_t steps() const noexcept { return static_cast<std::uint64_t>(steps_); }
  void set_steps(std::uint64_t steps) noexcept { steps_ = static_cast<std::int64_t>(steps); }

  /// What a checkpoint needs besides the weights, which this averages: the number of steps. Collective, blocking, as
  /// average_now(). Lifetime: the view is that of this object.
  template <class Group>
  std::vector<ddp::NamedTensor> state(const Group& group) {
    ranks_.state_is_for("hooks::LocalSgd", group.world_size());
    average_now(group);
    return {{"local_sgd/steps", tensor_view(&steps_, {})}};
  }

 private:
  static constexpr std::size_t joined_bytes = std::size_t{1} << 20;

  /// Weights of one type that are reduced together: a single one in place, several in `memory_`.
  struct Joined {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t elements = 0;
  };

  BufferView gather(const Joined& joined) const noexcept;
  void scatter(const Joined& joined, const std::byte* memory) const noexcept;

  LocalSgdOptions options_;
  std::int64_t steps_ = 0;
  std::vector<TensorView> values_;
  std::vector<Joined> joined_;
  mutable std::vector<std::byte> memory_;
  ddp::HookRanks ranks_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED LocalSgd::LocalSgd(LocalSgdOptions options) : options_(options) {
  if (options.every == 0) {
    throw_error(Errc::invalid_argument, "hooks::LocalSgd got every = 0; it is 1 or more steps", {});
  }
}

DTRAIN_DEFINED std::string LocalSgd::description() const {
  return format_text("hooks::LocalSgd every {} steps after {}", {options_.every, options_.start_after});
}

DTRAIN_DEFINED void LocalSgd::prepare(std::span<const Parameter> parameters) {
  values_.clear();
  joined_.clear();
  std::size_t largest = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& value = parameters[i].value;
    values_.push_back(value);
    if (value.bytes() == 0) {
      continue;
    }
    Joined* const last = joined_.empty() ? nullptr : &joined_.back();
    const bool joins = last != nullptr && last->first + last->count == i && values_[last->first].dtype == value.dtype &&
                       value.device.kind == DeviceKind::host &&
                       last->elements * size_bytes(value.dtype) + value.bytes() <= joined_bytes;
    if (!joins) {
      joined_.push_back({i, 1, value.flat().count});
      continue;
    }
    ++last->count;
    last->elements += value.flat().count;
    largest = std::max(largest, last->elements * size_bytes(value.dtype));
  }
  memory_.resize(largest);
}

DTRAIN_DEFINED BufferView LocalSgd::gather(const Joined& joined) const noexcept {
  const TensorView& first = values_[joined.first];
  if (joined.count == 1) {
    return first.flat();
  }
  std::byte* to = memory_.data();
  for (const TensorView& value : std::span(values_).subspan(joined.first, joined.count)) {
    kernels::copy_bytes(to, value.data, value.bytes());
    to += value.bytes();
  }
  return {memory_.data(), joined.elements, first.dtype, first.device};
}

DTRAIN_DEFINED void LocalSgd::scatter(const Joined& joined, const std::byte* memory) const noexcept {
  if (joined.count == 1) {
    return;
  }
  for (const TensorView& value : std::span(values_).subspan(joined.first, joined.count)) {
    kernels::copy_bytes(value.data, memory, value.bytes());
    memory += value.bytes();
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::hooks
