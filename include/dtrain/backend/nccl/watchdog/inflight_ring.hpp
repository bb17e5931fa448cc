#pragma once
/// @file
/// InflightRing: the operations that run or wait in streams, and since when the first one runs.

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

/// An event before and one after each operation, in a fixed ring. Where more are in flight than it has slots, the
/// last slot stands for several operations, and its clock begins anew with each. No lock is held over a call of
/// CUDA's, any of which may stand for as long as a stream is full. Threads: one enters operations at a time, any polls.
class InflightRing {
 public:
  /// What is to be seen of the operation in front, if any.
  struct View {
    cudaError_t failure = cudaSuccess;  ///< of the device
    std::optional<Operation> running{};
    Deadline::Clock::time_point since{};
  };

  /// An operation from before it is enqueued to after it; its end gives it up where end() was not called.
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

  /// Makes the events, so that no operation has to. @throws Error (cuda)
  explicit InflightRing(int device) {
    const stream::cuda::Stream first(stream::cuda::Priority::normal, device);
    for (InflightOperation& slot : operations_) {
      first.ref().record(slot.before);
      first.ref().record(slot.after);
    }
  }

  /// Asks the events, and forgets what is complete; nothing while another thread asks. Not in a thread that captures a
  /// stream.
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

  /// How many slots were found complete.
  std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_relaxed); }

  /// As of the last poll.
  View last_view() const {
    const std::lock_guard lock(mutex_);
    return last_view_;
  }

  /// Whether no operation was in flight when the last poll ended, nor has been entered since.
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return count_ == 0;
  }

  /// Since when a poll has not come back; nothing where none is under way.
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

  /// Also where `after` could not be recorded anew: the slot ends with an earlier operation then.
  void mark_enqueued() noexcept {
    const std::lock_guard lock(mutex_);
    at(count_ - 1).enqueued = true;
  }

  /// That of the operation entered last, which nobody takes out before it is enqueued.
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
  mutable std::mutex mutex_;  ///< for all below, but the events
  std::array<InflightOperation, 64> operations_;
  std::size_t front_ = 0;
  std::size_t count_ = 0;
  View last_view_{};
  std::optional<Deadline::Clock::time_point> polling_since_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
