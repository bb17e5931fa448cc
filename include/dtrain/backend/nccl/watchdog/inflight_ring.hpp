#pragma once
/// @file
/// InflightRing: the operations in flight on streams, and when the first of them began.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Records an event before and after each operation, in a fixed ring. If more operations are in flight than the ring
/// has slots, the last slot stands for several, and its clock restarts with each. No lock is held during a CUDA call,
/// because any may block while a stream is full. Threads: one enters operations at a time, any polls.
class InflightRing {
 public:
  /// State of the first operation, if any.
  struct View {
    cudaError_t failure = cudaSuccess;  ///< of the device
    std::optional<Operation> running{};
    Deadline::Clock::time_point since{};
  };

  /// An operation, from before to after it is enqueued. Destruction marks it as enqueued, also without end().
  class TrackedOperation {
   public:
    /// @throws Error (cuda)
    TrackedOperation(InflightRing& ring, const Operation& operation, stream::cuda::StreamRef stream) : ring_(&ring) {
      ring.begin(operation, stream);
    }
    TrackedOperation(const TrackedOperation&) = delete;
    TrackedOperation& operator=(const TrackedOperation&) = delete;
    ~TrackedOperation() { ring_->mark_enqueued(); }

    /// @throws Error (cuda)
    void end(stream::cuda::StreamRef stream) { stream.record(ring_->last().after); }

   private:
    InflightRing* ring_;
  };

  /// Makes all events in advance. @throws Error (cuda)
  explicit InflightRing(int device) {
    const stream::cuda::Stream first(stream::cuda::Priority::normal, device);
    for (InflightOperation& slot : operations_) {
      first.ref().record(slot.before);
      first.ref().record(slot.after);
    }
  }

  /// Queries the events and removes complete operations; does nothing while another thread polls. Precondition: the
  /// thread captures no stream.
  void poll() {
    const std::unique_lock one(polling_, std::try_to_lock);
    if (!one) {
      return;
    }
    set_polling_since(Deadline::Clock::now());
    View view;
    for (InflightOperation* front = front_enqueued(); front != nullptr; front = front_enqueued()) {
      view.failure = cudaEventQuery(front->after.native());
      if (view.failure != cudaSuccess) {
        break;
      }
      progress_.fetch_add(1, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      front_ = (front_ + 1) % operations_.size();
      --count_;
    }
    if (!stream::cuda::quiet(view.failure) && view.failure == cudaErrorNotReady) {
      view.failure = cudaSuccess;
    }
    InflightOperation* const front = front_not_begun();
    const bool begins = front != nullptr && front->before.is_complete();
    const std::lock_guard lock(mutex_);
    if (begins) {
      front->began = Deadline::Clock::now();
    }
    if (count_ > 0 && at(0).began) {
      view.running = at(0).operation;
      view.since = *at(0).began;
    }
    last_view_ = view;
    polling_since_.reset();
  }

  /// Number of slots that polls found complete.
  std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_relaxed); }

  /// Result of the last poll.
  View last_view() const {
    const std::lock_guard lock(mutex_);
    return last_view_;
  }

  /// Whether no operation was in flight after the last poll, and none was entered since.
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return count_ == 0;
  }

  /// When the current poll began; empty if none is running.
  std::optional<Deadline::Clock::time_point> polling_since() const {
    const std::lock_guard lock(mutex_);
    return polling_since_;
  }

 private:
  struct InflightOperation {
    Operation operation{};
    stream::cuda::Event before;
    stream::cuda::Event after;
    bool enqueued = false;  ///< and `after` recorded
    std::optional<Deadline::Clock::time_point> began{};
  };

  void begin(const Operation& operation, stream::cuda::StreamRef stream) {
    InflightOperation* next = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (count_ == operations_.size()) {
        enter(at(count_ - 1), operation);
        return;
      }
      next = &at(count_);
    }
    stream.record(next->before);
    const std::lock_guard lock(mutex_);
    enter(*next, operation);
    ++count_;
  }

  static void enter(InflightOperation& slot, const Operation& operation) {
    slot.operation = operation;
    slot.began.reset();
    slot.enqueued = false;
  }

  /// Also if `after` could not be recorded again: the slot then completes with an earlier operation.
  void mark_enqueued() noexcept {
    const std::lock_guard lock(mutex_);
    at(count_ - 1).enqueued = true;
  }

  /// Slot of the operation entered last, which stays in the ring until it is enqueued.
  InflightOperation& last() {
    const std::lock_guard lock(mutex_);
    return at(count_ - 1);
  }

  InflightOperation* front_enqueued() {
    const std::lock_guard lock(mutex_);
    return count_ > 0 && at(0).enqueued ? &at(0) : nullptr;
  }
  InflightOperation* front_not_begun() {
    const std::lock_guard lock(mutex_);
    return count_ > 0 && !at(0).began ? &at(0) : nullptr;
  }

  void set_polling_since(Deadline::Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    polling_since_ = now;
  }

  InflightOperation& at(std::size_t index) noexcept { return operations_[(front_ + index) % operations_.size()]; }

  std::atomic<std::uint64_t> progress_{0};
  std::mutex polling_;
  mutable std::mutex mutex_;  ///< guards all members below, except the events
  std::array<InflightOperation, 64> operations_;
  std::size_t front_ = 0;
  std::size_t count_ = 0;
  View last_view_{};
  std::optional<Deadline::Clock::time_point> polling_since_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
