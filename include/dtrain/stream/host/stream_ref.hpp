#pragma once
/// @file
/// stream::host::StreamRef: a borrowed host queue, which models Stream. Event: a point in it. ExternalEvent: completed
/// by the host.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/stream/host/queue.hpp"
#include "dtrain/stream/stream.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// A point in a host stream: a queue and a ticket. An event never recorded is complete. Threads: any thread polls and
/// waits, but not while another thread records. Lifetime: the queue outlives it.
/// @ingroup streams
class Event {
 public:
  bool is_complete() const noexcept { return queue_ == nullptr || queue_->is_complete(ticket_); }

  /// Number of completed work items of its stream; equal values mean that none completed in between.
  std::uint64_t progress() const noexcept { return queue_ == nullptr ? 0 : queue_->completed(); }

  /// Blocking: see Queue::block_until_complete. Each work item ends by its deadline.
  WaitResult block_until_complete(Deadline deadline) const {
    return queue_ == nullptr ? WaitResult::complete : queue_->block_until_complete(ticket_, deadline);
  }

 private:
  friend class StreamRef;

  Queue* queue_ = nullptr;
  std::uint64_t ticket_ = 0;
};

/// An event that a host thread completes by signal(). Threads: all members from any thread. Lifetime: not movable;
/// outlives the work that waits for it. signal() does not use a complete event: a thread that sees the event complete
/// may destroy it.
/// @ingroup streams
class ExternalEvent {
 public:
  ExternalEvent() = default;
  ExternalEvent(const ExternalEvent&) = delete;
  ExternalEvent& operator=(const ExternalEvent&) = delete;

  bool is_complete() const noexcept { return state_.load(std::memory_order_acquire) >= signalled; }

  /// Whether a stream's wait reached its deadline before the signal.
  bool timed_out() const noexcept { return state_.load(std::memory_order_acquire) == expired; }

  void signal() noexcept { complete_as(signalled); }

  /// Makes the event incomplete again. Not while a thread waits.
  void reset() noexcept { state_.store(idle, std::memory_order_release); }

  WaitResult block_until_complete(Deadline deadline) const noexcept {
    std::uint32_t state = state_.load(std::memory_order_acquire);
    while (state < signalled) {
      if (state == idle && !state_.compare_exchange_strong(state, awaited, std::memory_order_acquire)) {
        continue;
      }
      const FutexResult result = futex_wait(state_, awaited, deadline, FutexScope::process);
      state = state_.load(std::memory_order_acquire);
      if (result == FutexResult::timed_out && state < signalled) {
        return WaitResult::timed_out;
      }
    }
    return WaitResult::complete;
  }

 private:
  friend class StreamRef;
  enum SignalState : std::uint32_t { idle, awaited, signalled, expired };

  void complete_as(SignalState final_state) noexcept {
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    while (state < signalled && !state_.compare_exchange_weak(state, final_state, std::memory_order_acq_rel)) {
    }
    if (state == awaited) {
      futex_wake_all(state_, FutexScope::process);
    }
  }

  mutable std::atomic<std::uint32_t> state_{idle};
};

/// A reference to a host stream: borrows its Queue. Threads: as Queue. Lifetime: the queue outlives it and all work
/// enqueued through it.
/// @ingroup streams
class StreamRef {
 public:
  using Event = host::Event;
  using ExternalEvent = host::ExternalEvent;

  explicit StreamRef(Queue& queue) noexcept : queue_(&queue) {}
  StreamRef(int) = delete;
  StreamRef(std::nullptr_t) = delete;

  Device device() const noexcept { return {}; }

  /// Lets the event complete when all work enqueued so far is complete.
  void record(Event& event) const noexcept {
    event.queue_ = queue_;
    event.ticket_ = queue_->published();
  }

  /// Lets later work of this stream start after the event's latest record. The thread that runs this stream also runs
  /// the other stream's work if no other thread does. Enqueued; the host does not block.
  void wait(const Event& event) const;

  /// Later work starts after `event.signal()`, or at the deadline, which then completes the event with `timed_out()`.
  /// Enqueued; the host does not block. Lifetime: the event outlives this work.
  void wait(ExternalEvent& event, Deadline deadline) const;

  /// Runs `work` after the work enqueued so far. Enqueued; see Queue::enqueue.
  template <WorkFunction F>
  void enqueue(const F& work) const {
    queue_->enqueue(work);
  }

  /// Whether a thread runs the stream's work as soon as it can: a HelperThread.
  bool has_helper() const noexcept { return queue_->has_helper(); }

  /// Number of work items enqueued so far, by all threads.
  std::uint64_t enqueued_items() const noexcept { return queue_->published(); }

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

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void StreamRef::wait(const Event& event) const {
  if (event.queue_ == queue_ || event.is_complete()) {
    return;
  }
  const auto wait_for_other = [event]() noexcept {
    // Bounded: each work item of the other stream ends by its deadline.
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

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::stream::host
