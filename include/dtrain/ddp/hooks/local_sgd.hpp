#pragma once
/// @file
/// hooks::LocalSgd: gradient hook whose steps communicate nothing; every few steps it averages the ranks' weights.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
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
#include "dtrain/ddp/hooks/hook_state.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::hooks {

/// Options of LocalSgd. The same on every rank.
/// @ingroup hooks
struct LocalSgdOptions {
  std::uint64_t every = 8;        ///< steps from one averaging to the next
  std::uint64_t start_after = 0;  ///< steps whose gradients are reduced, before the local ones
};

/// A GradientHook for post-local SGD: steps without communication. After `start_after` steps each rank updates its
/// weights by its own gradients. Every `every` steps the weights of all ranks are averaged. f32 weights are averaged in
/// f32, whatever the topology's wire type. Local steps communicate nothing. Ranks wait only after the first step, for
/// rank 0's order of the buckets (DdpOptions::reorder_gradients).
///
///   dtrain::hooks::LocalSgd local{{.every = 8, .start_after = 100}};
///   dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(local)};
///   ddp.backward(f);
///   sgd.step(model);
///   local.average(group);   // after each step of the optimizer
///   ...
///   local.average_now(group);   // after the last step: all ranks have the same weights
///
/// Source: T. Lin, S. U. Stich, K. K. Patel and M. Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
/// - Between two averages the ranks' weights differ: evaluate after average_now(), and take checkpoints with state().
/// - In local steps StepOptions::measure_norm gives the norm of this rank's gradients, and LossScaler may decide
///   differently on each rank: use bf16 or f32.
/// - Each rank keeps its own optimizer state.
/// - In an elastic job, the weights and the optimizer's state are given to keep_copy(), and commit() comes after an
/// average; a step that is repeated begins with the last average.
/// - Buffers that steps broadcast (DdpOptions::broadcast_buffers) are not broadcast in local steps: each rank has its
///   own. An average of the weights also averages buffers of f64, f32, f16 and bf16; other buffers become equal to rank
///   0's.
/// Lifetime: one model, which outlives the hook; the hook outlives its wrapper. Threads: the threads of the steps.
/// @ingroup hooks
class LocalSgd {
 public:
  /// @throws Error (invalid_argument) if `every` is 0
  explicit LocalSgd(LocalSgdOptions options = {});

  std::string description() const {
    return format_text("hooks::LocalSgd every {} steps after {}", {options_.every, options_.start_after});
  }

  /// Keeps views of the weights and buffers, and allocates the memory in which small ones are averaged together.
  void prepare(std::span<const Parameter> parameters, std::span<const TensorView> buffers = {});
  void read_values(ddp::ReadValue read) { read_value_ = std::move(read); }

  template <class C>
  void reduce(const ddp::GradientBucket<C>& bucket) {
    ranks_.step_is_for("hooks::LocalSgd", bucket.channel.size());
    if (is_local()) {
      differ_ = true;
    } else {
      connect(bucket);
    }
  }
  template <class C>
  void connect(const ddp::GradientBucket<C>& bucket) {
    bucket.channel.enqueue(backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
  }
  bool skips_buffer_broadcast() const noexcept { return is_local(); }
  /// Whether a local step came after the last average.
  bool weights_differ() const noexcept { return differ_; }

  /// Counts a step, and averages the weights after every `every` local steps. Collective, blocking: every rank calls it
  /// after each step of its optimizer. @returns whether it averaged @throws the job's first cause
  template <class Group>
  bool average(const Group& group) {
    ++steps_;
    const bool is_turn = steps() > options_.start_after && (steps() - options_.start_after) % options_.every == 0;
    if (is_turn) {
      average_now(group);
    }
    return is_turn;
  }

  /// Averages the weights and the buffers. Collective, blocking. Weights in device memory are written before the call,
  /// or by the stream that the model names (PresentValue::stream). @throws the job's first cause
  template <class Group>
  void average_now(const Group& group) const {
    group::follow_stream(group::GroupAccess::of(group), find_values());
    for (const Joined& joined : joined_) {
      const TensorView& first = values_[joined.first];
      if (joined.count == 1) {
        group.all_reduce_without_cast(first.flat(), ReduceOp::average);
        continue;
      }
      copy(joined, true);
      const BufferView memory{memory_.data(), joined.elements, first.dtype, first.device};
      group.all_reduce_without_cast(memory, ReduceOp::average);
      copy(joined, false);
    }
    for (const TensorView& buffer : copied_)
      group.broadcast(buffer.flat(), 0);
    differ_ = false;
  }

  /// Calls of average() so far, the same on all ranks.
  std::uint64_t steps() const noexcept { return static_cast<std::uint64_t>(steps_); }
  void set_steps(std::uint64_t steps) noexcept { steps_ = static_cast<std::int64_t>(steps); }

  /// State for a checkpoint besides the weights and buffers: the number of steps. Averages the weights and buffers.
  /// Collective, blocking, as average_now(), with the wrapper's group. Lifetime: the view refers to this object.
  /// @throws Error (invalid_argument) for a group of another number of ranks than the wrapper's, in the next step if no
  /// step has run; the job's first cause
  template <class Group>
  std::vector<ddp::NamedTensor> state(const Group& group) {
    ranks_.state_is_for("hooks::LocalSgd", group.world_size());
    average_now(group);
    return {{"local_sgd/steps", tensor_view(&steps_, {})}};
  }

 private:
  static constexpr std::size_t joined_bytes = std::size_t{1} << 20;

  /// Weights or buffers of one type that are reduced together: a single tensor in place, several tensors in `memory_`.
  struct Joined {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t elements = 0;
  };

  /// Whether the next step keeps this rank's gradients.
  bool is_local() const noexcept { return steps() >= options_.start_after; }

  /// Reads the present addresses of the weights, if values move. @returns the stream that writes them; of the host:
  /// none
  StreamHandle find_values() const {
    StreamHandle writer;
    for (std::size_t i = 0; read_value_ && i < weights_; ++i) {
      const ddp::PresentValue present = read_value_(i);
      values_[i] = present.view;
      writer = present.stream;
    }
    return writer;
  }

  void add(const TensorView& value);
  /// Copies the tensors of `joined` to memory_, or from there.
  void copy(const Joined& joined, bool gathers) const noexcept;

  LocalSgdOptions options_;
  std::int64_t steps_ = 0;
  mutable std::vector<TensorView> values_;  ///< weights, and buffers of floats
  std::size_t weights_ = 0;                 ///< number of weights in values_
  ddp::ReadValue read_value_;               ///< empty: values do not move
  std::vector<Joined> joined_;
  std::vector<TensorView> copied_;  ///< other buffers
  mutable std::vector<std::byte> memory_;
  ddp::HookRanks ranks_;
  mutable bool differ_ = false;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED LocalSgd::LocalSgd(LocalSgdOptions options) : options_(options) {
  if (options.every == 0) {
    throw_error(Errc::invalid_argument, "hooks::LocalSgd got every = 0; it is 1 or more steps");
  }
}

DTRAIN_DEFINED void LocalSgd::prepare(std::span<const Parameter> parameters, std::span<const TensorView> buffers) {
  values_.clear();
  joined_.clear();
  copied_.clear();
  memory_.clear();
  ranks_ = {};
  differ_ = false;
  for (const Parameter& parameter : parameters) {
    add(parameter.value);
  }
  weights_ = values_.size();
  for (const TensorView& buffer : buffers) {
    if (is_float(buffer.dtype) && !is_float8(buffer.dtype)) {
      add(buffer);
    } else if (buffer.bytes() != 0) {
      copied_.push_back(buffer);
    }
  }
}

DTRAIN_DEFINED void LocalSgd::add(const TensorView& value) {
  values_.push_back(value);
  if (value.bytes() == 0) {
    return;
  }
  const std::size_t i = values_.size() - 1;
  Joined* const last = joined_.empty() ? nullptr : &joined_.back();
  const bool joins = last != nullptr && last->first + last->count == i && values_[last->first].dtype == value.dtype &&
                     value.device.kind == DeviceKind::host &&
                     last->elements * size_bytes(value.dtype) + value.bytes() <= joined_bytes;
  if (!joins) {
    joined_.push_back({i, 1, value.flat().count});
    return;
  }
  ++last->count;
  last->elements += value.flat().count;
  memory_.resize(std::max(memory_.size(), last->elements * size_bytes(value.dtype)));
}

DTRAIN_DEFINED void LocalSgd::copy(const Joined& joined, bool gathers) const noexcept {
  std::byte* at = memory_.data();
  for (const TensorView& value : std::span(values_).subspan(joined.first, joined.count)) {
    kernels::copy_bytes(gathers ? at : value.data, gathers ? value.data : at, value.bytes());
    at += value.bytes();
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::hooks
