#pragma once
/// @file
/// The pipeline: gradients go into buckets, full buckets become collectives, results go back.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/throw_if_failed.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/ddp/bucket.hpp"
#include "dtrain/ddp/buffer_broadcast.hpp"
#include "dtrain/ddp/capture.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/flow.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/launch_queue.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/replanning.hpp"
#include "dtrain/ddp/step_meter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Owns the channel and the arena. Knows nothing of who may announce what and when: Reducer does. Threads: `arrive`
/// concurrently, for different parameters; everything else between the first and the last of them. Buckets for which
/// there was no room are launched by whoever runs the host stream, too. Pinned.
template <backend::Communicator Communicator>
class Pipeline {
 public:
  using Stream = typename Communicator::Stream;
  using Flow = FlowOn<Stream>;

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
        flow_(stream, gradients_, plan_, meter_) {
    meter_.plan(plan_);
    if constexpr (!Flow::copies_on_stream) {
      flow_.when_there_is_room([this] { queue_.resume_if_held(launching()); });
    }
  }

  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  const Communicator& communicator() const noexcept { return communicator_; }
  const BucketPlan& plan() const noexcept { return plan_; }
  const GradientTable& gradients() const noexcept { return gradients_; }
  const Flow& flow() const noexcept { return flow_; }
  StepMeter& meter() noexcept { return meter_; }
  const StepMeter& meter() const noexcept { return meter_; }

  /// The meter, once it knows what a device has measured so far.
  const StepMeter& up_to_date_meter() noexcept {
    flow_.collect_times();
    return meter_;
  }
  std::shared_ptr<const void> memory() const noexcept { return arena_; }

  /// Blocking. What gradient i holds is copied into the arena, where it lives from now on. @returns where
  TensorView bind(std::size_t parameter, const FailureContext& context) {
    const GradientSlot slot = gradients_[parameter];
    if (slot.own != nullptr && !slot.is_bound()) {
      flow_.copy(slot.place, slot.own, slot.bytes, waiting(context));
    }
    return gradients_.bind(parameter);
  }

  void begin_step() noexcept {
    meter_.begin();
    queue_.begin_step();
    flow_.begin_step();
  }

  /// Gradient i of this step is at `gradient` once the work that `stream` holds now has run.
  void arrive(std::size_t parameter, const std::byte* gradient, StreamHandle stream) {
    flow_.arrive(parameter, gradient, stream);
    arrived(parameter);
  }

  /// Those for which `was_announced(i)` does not hold take part with zeros.
  template <class Announced>
  void leave_out_others(Announced was_announced) {
    for (std::size_t parameter = 0; parameter < gradients_.size(); ++parameter) {
      if (was_announced(parameter)) {
        flow_.note_producer(parameter);
      }
    }
    for (std::size_t parameter = 0; parameter < gradients_.size(); ++parameter) {
      if (!was_announced(parameter)) {
        flow_.leave_out(parameter);
        arrived(parameter);
      }
    }
  }

  /// From now on `act` is called in each step when all gradients are in their places, before the last launch.
  void when_all_are_there(std::function<void()> act) { all_are_there_ = std::move(act); }

  /// Nothing is launched from now on, in the background either.
  void stop_launching() noexcept { queue_.close(); }

  /// Rethrows what a launch threw in this step.
  void throw_if_launch_failed() const { queue_.throw_if_launch_failed(); }

  /// Whether all gradients of this step are in their places, and not only announced.
  bool all_complete() const { return queue_.all_complete(); }

  /// Collective. Blocking on host streams: until all is reduced and in its own memory; on CUDA the producers' streams
  /// wait. @throws the job's first cause; Error (timeout)
  void finish(const FailureContext& context) {
    flow_.finish(waiting(context), [this, launched = queue_.launched()](std::size_t bucket) mutable {
      if (bucket >= launched) {
        queue_.resume(launching());
        launched = queue_.launched();
      }
    });
    buffers_.finish(flow_);
    meter_.finished(Flow::is_measured);
  }

  /// Blocking. Between steps: the plan for another order of the same gradients; what they hold is kept.
  void replan(std::span<const std::size_t> order, const Replanning& replanning, const FailureContext& context) {
    BucketPlan next = plan_again(plan_, sizes_, order, replanning.caps);
    if (next.offset_of == plan_.offset_of && next.bucket_of == plan_.bucket_of) {
      return;  // as was foreseen: there is no need of memory for another copy of all gradients
    }
    move_gradients(gradients_, next, arena_base(), flow_, waiting(context), replanning.bind, replanning.ranks_on_host);
    plan_ = std::move(next);
    ranges_ = ranges_of(plan_, arena_base());
    queue_.plan(parameter_counts(plan_));
    meter_.plan(plan_);
    flow_.replan();
  }

  /// Blocking: until the work that points into the arena has ended; aborted where it does not by the deadline, or now.
  /// @returns false where it has not ended even so: this must outlive it
  bool end(bool now, const Cause& cause, Deadline deadline) {
    stop_launching();
    if (!now && flow_.block_until_idle(deadline)) {
      return true;
    }
    communicator_.abort(cause);
    return flow_.block_until_idle(Deadline::after(std::chrono::seconds(5)));
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

  void arrived(std::size_t parameter) {
    queue_.arrived(
        plan_.bucket_of[parameter], [this](std::size_t bucket) { flow_.complete(bucket); }, launching());
  }

  auto launching() {
    return [this](std::size_t bucket) { return launch(bucket); };
  }

  /// Under the queue's gate, which makes it the one thread that enqueues. @returns whether there was room.
  bool launch(std::size_t bucket) {
    if (!flow_.can_launch(bucket)) {
      return false;
    }
    meter_.launched(bucket);
    flow_.before(bucket);
    if (const BufferView& range = ranges_[bucket]; range.count != 0) {
      communicator_.all_reduce(range, range, op_, flow_.stream());
    }
    if (bucket + 1 == ranges_.size()) {
      if (all_are_there_) {
        all_are_there_();
      }
      buffers_.launch(communicator_, flow_);  // by now the stream has waited for all who took part in the step
    }
    flow_.after(bucket);
    return true;
  }

  Communicator communicator_;
  ReduceOp op_;
  BucketPlan plan_;
  std::vector<GradientSize> sizes_;
  std::shared_ptr<Allocation> arena_;
  BufferBroadcast<Communicator> buffers_;
  GradientTable gradients_;
  LaunchQueue queue_;
  std::vector<BufferView> ranges_;  ///< of the buckets
  StepMeter meter_;
  Flow flow_;
  std::function<void()> all_are_there_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
