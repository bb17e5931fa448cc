#pragma once
/// @file
/// Host gradient copier: copies gradients in host memory into their bucket and back, in the announcing thread and in
/// finish().

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

/// A gradient copier is the part of a reducer that differs between streams: Reducer calls it, with indices in range.
/// Threads: `on_gradient_ready` concurrently, for different parameters; `complete`, `can_launch`, `before` and `after`
/// under the bucket queue's mutex; everything else between steps. Lifetime: table, plan and meter outlive it.
template <stream::Stream Stream>
class HostGradientCopier {
 public:
  static constexpr bool copies_on_stream = false;  ///< else a thread of the host copies

  /// Whether the meter knows when the stream came to a bucket and was done with it.
  static constexpr bool is_measured = requires(Stream stream, StepMeter::Stamp stamp) { stream.enqueue(stamp); };

  HostGradientCopier(Stream stream, GradientTable& gradients, const BucketPlan& plan, StepMeter& meter)
      : stream_(stream), gradients_(&gradients), plan_(&plan), meter_(&meter), reduced_(plan.buckets.size()) {}

  Stream stream() const noexcept { return stream_; }

  /// Work of `stream` from now on comes after what `producer` holds now: on the host that has run.
  static void order_behind(Stream, StreamHandle) noexcept {}

  /// The plan is another one of as many bytes. Between steps, while nothing is on its way.
  void rebuild_buckets() { reduced_ = std::vector<Event>(plan_->buckets.size()); }

  void begin_step() noexcept { done_ = 0; }

  /// Stamps have updated the meter in time.
  void collect_times() const noexcept {}

  /// The gradient is final now. Nothing to check for `ready(i)`.
  void require_no_stream(std::size_t) const noexcept {}
  void require_stream(std::size_t parameter, StreamHandle stream) const {
    gradients_->require_same_device(parameter, stream);
  }

  /// It is at `gradient`, its own memory or other.
  void on_gradient_ready(std::size_t parameter, const std::byte* gradient, StreamHandle) const noexcept {
    (*gradients_)[parameter].pack_from(gradient);
  }

  /// It takes part with zeros.
  void zero_fill(std::size_t parameter) const noexcept {
    clear((*gradients_)[parameter].place, (*gradients_)[parameter].bytes);
  }
  void note_producer(std::size_t) const noexcept {}  // the thread that announced the gradient has finished it

  void complete(std::size_t) const noexcept {}

  /// From now on `act` is called by the stream when a bucket is reduced: there may be capacity for another one. It
  /// throws nothing. Before the first step.
  void on_capacity_freed(std::function<void()> act) { on_capacity_freed_ = std::move(act); }

  /// A host stream has a bounded queue and then runs work in the thread that enqueues: ready() must not do that.
  bool can_launch(std::size_t bucket) noexcept {
    while (bucket - done_ >= max_in_flight && reduced_[done_].is_complete()) {
      ++done_;
    }
    return bucket - done_ < max_in_flight;
  }

  /// Enqueued before and after the collective of a bucket.
  void before(std::size_t bucket) const { stamp(bucket, StepEvent::started); }
  void after(std::size_t bucket) {
    if constexpr (is_measured) {
      stream_.enqueue(BucketReduced{meter_->stamp(bucket, StepEvent::reduced), &on_capacity_freed_});
    }
    stream_.record(reduced_[bucket]);
  }

  /// Blocking: until all is reduced and in its own memory. `wait(event)` throws where the job has failed, and
  /// `resume()` launches buckets for which there was no capacity.
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

  /// Blocking. While no thread launches. @returns whether the stream is done with all that is enqueued, that of a
  /// bucket whose launch threw included, at the deadline at the latest
  bool block_until_idle(Deadline deadline) {
    Event done;
    stream_.record(done);
    return done.block_until_complete(deadline) == stream::WaitResult::complete;
  }

  /// Between own memory and places that hold no gradients.
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

  /// Whether addresses may change: no graph holds them.
  bool may_move() const noexcept { return true; }

 private:
  using Event = typename Stream::Event;

  /// Work for the stream. Where it runs in the background the next bucket is launched there: another rank may wait for
  /// it while this one is in another channel.
  struct BucketReduced {
    StepMeter::Stamp stamp;
    const std::function<void()>* on_capacity_freed;
    void operator()() const noexcept {
      stamp();
      if (*on_capacity_freed) (*on_capacity_freed)();
    }
  };

  /// Buckets under way at once: each may take eight of the 256 slots of stream::host::Queue, of which two are stamps.
  /// A thread that launches must not wait for a slot, since the work that runs may launch, too.
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
  std::size_t done_ = 0;  ///< buckets that were seen reduced
  std::function<void()> on_capacity_freed_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
