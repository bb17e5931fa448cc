#pragma once
/// @file
/// The pipeline: gradients go into buckets, full buckets become collectives, results go back.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/block_until_complete.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/agreement/buffer_broadcast.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/ddp/reduction/bucket_queue.hpp"
#include "dtrain/ddp/reduction/bucket_ranges.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"
#include "dtrain/ddp/reduction/gradient_copier.hpp"
#include "dtrain/ddp/reduction/gradient_table.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Owns the channel and the arena. Reducer checks which gradients may be announced when. Threads: `add_gradient`
/// concurrently, for different parameters; everything else between the first and the last of them. Buckets for which
/// the stream had no capacity are launched by the thread that runs the host stream, too. Pinned.
template <backend::Communicator Communicator>
class Pipeline {
 public:
  using Stream = typename Communicator::Stream;
  using GradientCopier = GradientCopierFor<Stream>;

  /// Collective, blocking: allocates. @throws as Reducer.
  Pipeline(Communicator communicator, Stream stream, std::span<const Parameter> parameters,
           std::span<const TensorView> buffers, BucketPlan plan, ReduceOp op, const FailureContext& context,
           std::size_t records, Metering metering)
      : communicator_(std::move(communicator)),
        op_(op),
        plan_(std::move(plan)),
        sizes_(gradient_sizes(parameters)),
        arena_(allocate(context)),
        buffers_(communicator_, buffers, Deadline::after(context.timeout)),
        gradients_(parameters, plan_, arena_base(), stream.device()),
        queue_(parameter_counts(plan_)),
        ranges_(ranges_of(plan_, arena_base())),
        meter_(ranges_.size(), records, std::move(metering)),
        copier_(stream, gradients_, plan_, meter_) {
    meter_.plan(plan_);
    if constexpr (!GradientCopier::copies_on_stream) {
      copier_.on_capacity_freed([this] { queue_.resume_if_waiting(launching()); });
    }
  }

  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  const Communicator& communicator() const noexcept { return communicator_; }
  const BucketPlan& plan() const noexcept { return plan_; }
  const GradientTable& gradients() const noexcept { return gradients_; }
  const GradientCopier& copier() const noexcept { return copier_; }
  StepMeter& meter() noexcept { return meter_; }
  const StepMeter& meter() const noexcept { return meter_; }

  /// The meter, once it knows what a device has measured so far.
  const StepMeter& up_to_date_meter() noexcept {
    copier_.collect_times();
    return meter_;
  }
  std::shared_ptr<const void> memory() const noexcept { return arena_; }

  /// Blocking. What gradient i holds is copied into the arena, where it lives from now on. @returns where
  TensorView bind(std::size_t parameter, const FailureContext& context) {
    const GradientSlot slot = gradients_[parameter];
    if (slot.own != nullptr && !slot.is_bound()) {
      copier_.copy(slot.place, slot.own, slot.bytes, waiting(context));
    }
    return gradients_.bind(parameter);
  }

  void begin_step() noexcept {
    meter_.begin();
    queue_.begin_step();
    copier_.begin_step();
  }

  /// Gradient i of this step is at `gradient` once the work that `stream` holds now has run.
  void add_gradient(std::size_t parameter, const std::byte* gradient, StreamHandle stream) {
    copier_.on_gradient_ready(parameter, gradient, stream);
    mark_gradient_ready(parameter);
  }

  /// Those for which `was_announced(i)` does not hold take part with zeros.
  template <class Announced>
  void zero_fill_others(Announced was_announced) {
    for (std::size_t parameter = 0; parameter < gradients_.size(); ++parameter) {
      if (was_announced(parameter)) {
        copier_.note_producer(parameter);
      }
    }
    for (std::size_t parameter = 0; parameter < gradients_.size(); ++parameter) {
      if (!was_announced(parameter)) {
        copier_.zero_fill(parameter);
        mark_gradient_ready(parameter);
      }
    }
  }

  /// From now on `act` is called in each step when all gradients are in their buckets, before the last launch.
  void on_all_gradients_ready(std::function<void()> act) { on_all_gradients_ready_ = std::move(act); }

  /// Nothing is launched from now on, in the background either.
  void stop_launching() noexcept { queue_.close(); }

  /// Rethrows what a launch threw in this step.
  void throw_if_launch_failed() const { queue_.throw_if_launch_failed(); }

  /// Whether all gradients of this step are in their buckets, and not only announced.
  bool all_complete() const { return queue_.all_complete(); }

  /// Collective. Blocking on host streams: until all is reduced and in its own memory; on CUDA the producers' streams
  /// wait. @throws the job's first cause; Error (timeout)
  void finish(const FailureContext& context) {
    copier_.finish(waiting(context), [this, launched = queue_.launched()](std::size_t bucket) mutable {
      if (bucket >= launched) {
        queue_.resume(launching());
        launched = queue_.launched();
      }
    });
    buffers_.finish(copier_);
    meter_.finished(GradientCopier::is_measured);
  }

  /// Blocking. Between steps: the plan for another order of the same gradients; what they hold is kept.
  void rebuild_buckets(std::span<const std::size_t> order, const BucketRebuild& rebuild,
                       const FailureContext& context) {
    BucketPlan next = rebuilt_plan(plan_, sizes_, order, rebuild.caps);
    if (next.offset_of == plan_.offset_of && next.bucket_of == plan_.bucket_of) {
      return;  // the same plan: no memory for another copy of all gradients is needed
    }
    move_gradients(gradients_, next, arena_base(), copier_, waiting(context), rebuild.bind, rebuild.ranks_on_host);
    plan_ = std::move(next);
    ranges_ = ranges_of(plan_, arena_base());
    queue_.plan(parameter_counts(plan_));
    meter_.plan(plan_);
    copier_.rebuild_buckets();
  }

  /// Blocking: until the work that points into the arena has ended; aborted where it does not by the deadline, or now.
  /// @returns false where it has not ended even so: this must outlive it
  bool end(bool now, const Cause& cause, Deadline deadline) {
    stop_launching();
    if (!now && copier_.block_until_idle(deadline)) {
      return true;
    }
    communicator_.abort(cause);
    return copier_.block_until_idle(Deadline::after(std::chrono::seconds(5)));
  }

 private:
  using Allocation = typename Communicator::Allocation;

  std::shared_ptr<Allocation> allocate(const FailureContext& context) {
    if (plan_.arena_bytes == 0) {
      return nullptr;
    }
    return std::make_shared<Allocation>(
        communicator_.allocate_blocking(plan_.arena_bytes, Deadline::after(context.timeout)));
  }

  std::byte* arena_base() const noexcept { return arena_ ? arena_->data() : nullptr; }

  /// Waits for an event, as long as the job is well.
  auto waiting(const FailureContext& context) {
    return [this, &context](typename Stream::Event& event) {
      backend::block_until_complete(event, communicator_, *context.latch, context.timeout, context.rank);
    };
  }

  void mark_gradient_ready(std::size_t parameter) {
    queue_.mark_gradient_ready(
        plan_.bucket_of[parameter], [this](std::size_t bucket) { copier_.complete(bucket); }, launching());
  }

  auto launching() {
    return [this](std::size_t bucket) { return launch(bucket); };
  }

  /// Under the queue's mutex, which makes it the one thread that enqueues. @returns whether there was capacity.
  bool launch(std::size_t bucket) {
    if (!copier_.can_launch(bucket)) {
      return false;
    }
    meter_.launched(bucket);
    copier_.before(bucket);
    if (const BufferView& range = ranges_[bucket]; range.count != 0) {
      communicator_.all_reduce(range, range, op_, copier_.stream());
    }
    if (bucket + 1 == ranges_.size()) {
      if (on_all_gradients_ready_) {
        on_all_gradients_ready_();
      }
      buffers_.launch(communicator_, copier_);  // by now the stream has waited for all producers of the step
    }
    copier_.after(bucket);
    return true;
  }

  Communicator communicator_;
  ReduceOp op_;
  BucketPlan plan_;
  std::vector<GradientSize> sizes_;
  std::shared_ptr<Allocation> arena_;
  BufferBroadcast<Communicator> buffers_;
  GradientTable gradients_;
  BucketQueue queue_;
  std::vector<BufferView> ranges_;  ///< of the buckets
  StepMeter meter_;
  GradientCopier copier_;
  std::function<void()> on_all_gradients_ready_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
