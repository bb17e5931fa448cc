#pragma once
/// @file
/// StreamRef: the reference to a host queue that models Stream.

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/device.hpp"
#include "dtrain/stream/host/event.hpp"
#include "dtrain/stream/host/external_event.hpp"
#include "dtrain/stream/host/queue.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Borrows a Queue. Threads: as Queue. Lifetime: the queue outlives it and all work enqueued through it.
class StreamRef {
 public:
  using Event = host::Event;
  using ExternalEvent = host::ExternalEvent;

  explicit StreamRef(Queue& queue) noexcept : queue_(&queue) {}
  StreamRef(int) = delete;
  StreamRef(std::nullptr_t) = delete;

  Device device() const noexcept { return {}; }

  /// The event completes when all work enqueued so far has.
  void record(Event& event) const noexcept {
    event.queue_ = queue_;
    event.ticket_ = queue_->published();
  }

  /// Later work of this stream starts after the event's latest record. If no thread runs the other stream's work, the
  /// thread that runs this stream runs it. Enqueued; the host does not block.
  void wait(const Event& event) const;

  /// Later work starts after `event.signal()`, or at the deadline, which then completes the event with `timed_out()`.
  /// Enqueued; the host does not block. Lifetime: the event outlives this work.
  void wait(ExternalEvent& event, Deadline deadline) const;

  /// Runs `work` after the work enqueued so far. Enqueued; see Queue::enqueue.
  template <WorkFunction F>
  void enqueue(const F& work) const {
    queue_->enqueue(work);
  }

  /// See Queue::reserve.
  void reserve(std::uint64_t items) const { queue_->reserve(items); }

  friend bool operator==(StreamRef, StreamRef) = default;

 private:
  Queue* queue_;
};

inline StreamRef Queue::ref() noexcept {
  return StreamRef(*this);
}

static_assert(stream::Stream<StreamRef>);
static_assert(CanWaitExternal<StreamRef>);

}  // namespace DTRAIN_NAMESPACE::stream::host

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::stream::host {

DTRAIN_DEFINED void StreamRef::wait(const Event& event) const {
  if (event.queue_ == queue_ || event.is_complete()) {
    return;
  }
  const auto wait_for_other = [event]() noexcept {
    // Bounded: each work item of the other stream ends by a deadline of its own.
    while (event.block_until_complete(Deadline::after(std::chrono::minutes(1))) != WaitResult::complete) {
    }
  };
  queue_->enqueue(wait_for_other);
}

DTRAIN_DEFINED void StreamRef::wait(ExternalEvent& event, Deadline deadline) const {
  const auto wait_for_host = [target = &event, deadline]() noexcept {
    if (target->block_until_complete(deadline) == WaitResult::timed_out) {
      target->complete_as(ExternalEvent::expired);
    }
  };
  queue_->enqueue(wait_for_host);
}

}  // namespace DTRAIN_NAMESPACE::stream::host

#endif  // DTRAIN_DEFINITIONS
