#pragma once
/// @file
/// Host gradient copier: packs gradients in host memory in the thread that calls ready(), and unpacks in finish().

#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/stream_handle.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/ddp/reduction/gradient_table.hpp"
#include "dtrain/stream/stream.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A gradient copier is the part of a reducer that differs between streams. Reducer calls it with indices in range.
/// Threads: `on_gradient_ready` concurrently, for different parameters; `complete`, `can_launch`, `before` and `after`
/// under the bucket queue's mutex; everything else between steps. Lifetime: table, plan and meter outlive it.
template <stream::Stream Stream>
class HostGradientCopier {
 public:
  static constexpr bool copies_on_stream = false;  ///< false: a host thread copies

  /// Whether the meter gets the times at which the stream started and finished each bucket.
  static constexpr bool is_measured = requires(Stream stream, StepMeter::Stamp stamp) { stream.enqueue(stamp); };

  HostGradientCopier(Stream stream, GradientTable& gradients, const BucketPlan& plan, StepMeter& meter)
      : stream_(stream), gradients_(&gradients), plan_(&plan), meter_(&meter), reduced_(plan.buckets.size()) {}

  Stream stream() const noexcept { return stream_; }

  /// Makes later work of a stream run after a producer's. Nothing to do: a host producer's work has run.
  static void order_behind(Stream, StreamHandle) noexcept {}

  /// Adopts the new plan, which has as many bytes. Between steps, while no bucket is in flight.
  void rebuild_buckets() { reduced_ = std::vector<Event>(plan_->buckets.size()); }

  void begin_step() noexcept { done_ = 0; }

  /// Nothing to do: stamps update the meter.
  void collect_times() const noexcept {}

  /// Packs the gradient from `gradient`, its own or other memory.
  void on_gradient_ready(std::size_t parameter, const std::byte* gradient, StreamHandle) const noexcept {
    (*gradients_)[parameter].pack_from(gradient);
  }

  /// The parameter contributes zeros.
  void zero_fill(std::size_t parameter) const noexcept {
    clear((*gradients_)[parameter].place, (*gradients_)[parameter].bytes);
  }
  void note_producer(std::size_t) const noexcept {}  // the thread that called ready() has finished the gradient

  void complete(std::size_t) const noexcept {}

  /// Sets `act`, which the stream calls after each bucket, since it frees capacity. It must not throw. Before any step.
  void on_capacity_freed(std::function<void()> act) { on_capacity_freed_ = std::move(act); }

  /// Limits the buckets in flight: if its queue is full, a host stream runs work in the enqueueing thread, and ready()
  /// must not run work.
  bool can_launch(std::size_t bucket) noexcept {
    while (bucket - done_ >= max_in_flight && reduced_[done_].is_complete()) {
      ++done_;
    }
    return bucket - done_ < max_in_flight;
  }

  /// Enqueue stamps before and after the collective of a bucket.
  void before(std::size_t bucket) const { stamp(bucket, StepEvent::started); }
  void after(std::size_t bucket) {
    if constexpr (is_measured) {
      stream_.enqueue(BucketReduced{meter_->stamp(bucket, StepEvent::reduced), &on_capacity_freed_});
    }
    stream_.record(reduced_[bucket]);
  }

  /// Blocking: until all gradients are reduced and unpacked. `wait(event)` throws if the job has failed;
  /// `resume(bucket)` launches buckets that had no capacity before.
  template <class Wait, class Resume>
  void finish(Wait&& wait, Resume&& resume) {
    for (std::size_t bucket = 0; bucket < reduced_.size(); ++bucket) {
      resume(bucket);
      wait(reduced_[bucket]);
      for (const std::size_t parameter : plan_->buckets[bucket].parameters) {
        (*gradients_)[parameter].unpack();
      }
    }
  }

  /// Blocking: until `deadline` at most. No thread may launch meanwhile.
  /// @returns whether all enqueued work of the stream has run, including that of a bucket whose launch threw
  bool block_until_idle(Deadline deadline) {
    Event done;
    stream_.record(done);
    return done.block_until_complete(deadline) == stream::WaitResult::complete;
  }

  /// Copy between the model's memory and arena slots, for buffers.
  void gather(std::span<const GradientSlot> slots) const noexcept {
    for (const GradientSlot& slot : slots) {
      slot.pack();
    }
  }
  void scatter(std::span<const GradientSlot> slots) const noexcept {
    for (const GradientSlot& slot : slots) {
      slot.unpack();
    }
  }

  /// Blocking. Between steps.
  template <class Wait>
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, Wait&&) const noexcept {
    if (bytes != 0) {
      std::memcpy(to, from, bytes);
    }
  }

  template <class Wait>
  void synchronize(Wait&&) const noexcept {}

  void clear(std::byte* memory, std::size_t bytes) const noexcept {
    if (bytes != 0) {
      std::memset(memory, 0, bytes);
    }
  }

  /// Whether addresses may change: always, since no graph stores them.
  bool may_move() const noexcept { return true; }

 private:
  using Event = typename Stream::Event;

  /// Work for the stream. If it runs in the background, it launches the next bucket: another rank may wait for that
  /// bucket while this rank is in another channel.
  struct BucketReduced {
    StepMeter::Stamp stamp;
    const std::function<void()>* on_capacity_freed;
    void operator()() const noexcept {
      stamp();
      if (*on_capacity_freed) (*on_capacity_freed)();
    }
  };

  /// Most buckets in flight. Each may take eight of the 256 slots of stream::host::Queue, two of them for stamps. A
  /// launching thread must not wait for a slot, because the work that frees slots may launch as well.
  static constexpr std::size_t max_in_flight = 31;

  void stamp(std::size_t bucket, StepEvent event) const {
    if constexpr (is_measured) {
      stream_.enqueue(meter_->stamp(bucket, event));
    }
  }

  Stream stream_;
  GradientTable* gradients_;
  const BucketPlan* plan_;
  StepMeter* meter_;
  std::vector<Event> reduced_;
  std::size_t done_ = 0;  ///< buckets known to be reduced
  std::function<void()> on_capacity_freed_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
