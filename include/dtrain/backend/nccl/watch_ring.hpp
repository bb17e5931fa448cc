#pragma once
/// @file
/// The operations that run or wait in streams, and how long the one in front has run.

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

/// An event before and one behind each operation, in a fixed ring. Where more are in flight than it has places, the
/// last place stands for several operations, and its clock begins anew with each. No lock is held over a call of
/// CUDA's, any of which may stand for as long as a stream is full. Threads: one enters operations at a time, any look.
class WatchRing {
 public:
  /// What is to be seen of the operation in front, if any.
  struct View {
    cudaError_t failure = cudaSuccess;  ///< of the device
    std::optional<Operation> running{};
    Deadline::Clock::time_point since{};
  };

  /// An operation from before it is enqueued to behind it; its end gives it up where end() was not called.
  class Entry {
   public:
    /// @throws Error (cuda)
    Entry(WatchRing& ring, const Operation& operation, stream::cuda::StreamRef stream) : ring_(&ring) {
      ring.begin(operation, stream);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry() { ring_->say_enqueued(); }

    /// @throws Error (cuda)
    void end(stream::cuda::StreamRef stream) { stream.record(ring_->last().behind); }

   private:
    WatchRing* ring_;
  };

  /// Makes the events, so that no operation has to. @throws Error (cuda)
  explicit WatchRing(int device) {
    const stream::cuda::Stream first(stream::cuda::Priority::normal, device);
    for (Place& place : places_) {
      first.ref().record(place.before);
      first.ref().record(place.behind);
    }
  }

  /// Asks the events, and forgets what is complete; nothing while another thread asks. Not in a thread that captures a
  /// stream.
  void look() {
    const std::unique_lock one(looking_, std::try_to_lock);
    if (!one) {
      return;
    }
    set_asking_since(Deadline::Clock::now());
    View view;
    for (Place* front = front_enqueued(); front != nullptr; front = front_enqueued()) {
      view.failure = cudaEventQuery(front->behind.native());
      if (view.failure != cudaSuccess) {
        break;
      }
      progress_.fetch_add(1, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      front_ = (front_ + 1) % places_.size();
      --count_;
    }
    if (!stream::cuda::quiet(view.failure) && view.failure == cudaErrorNotReady) {
      view.failure = cudaSuccess;
    }
    Place* const front = front_not_begun();
    const bool begins = front != nullptr && front->before.is_complete();
    const std::lock_guard lock(mutex_);
    if (begins) {
      front->began = Deadline::Clock::now();
    }
    if (count_ > 0 && at(0).began) {
      view.running = at(0).operation;
      view.since = *at(0).began;
    }
    seen_ = view;
    asking_since_.reset();
  }

  /// How many places were found complete.
  std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_relaxed); }

  /// As of the last look.
  View seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

  /// Whether no operation was in flight when the last look ended, nor has been entered since.
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return count_ == 0;
  }

  /// Since when a look has not come back; nothing where none is under way.
  std::optional<Deadline::Clock::time_point> asking_since() const {
    const std::lock_guard lock(mutex_);
    return asking_since_;
  }

 private:
  struct Place {
    Operation operation{};
    stream::cuda::Event before;
    stream::cuda::Event behind;
    bool enqueued = false;  ///< and `behind` recorded
    std::optional<Deadline::Clock::time_point> began{};
  };

  void begin(const Operation& operation, stream::cuda::StreamRef stream) {
    Place* next = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (count_ == places_.size()) {
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

  static void enter(Place& place, const Operation& operation) {
    place.operation = operation;
    place.began.reset();
    place.enqueued = false;
  }

  /// Also where `behind` could not be recorded anew: the place ends with an earlier operation then.
  void say_enqueued() noexcept {
    const std::lock_guard lock(mutex_);
    at(count_ - 1).enqueued = true;
  }

  /// That of the operation entered last, which nobody takes out before it is enqueued.
  Place& last() {
    const std::lock_guard lock(mutex_);
    return at(count_ - 1);
  }

  Place* front_enqueued() {
    const std::lock_guard lock(mutex_);
    return count_ > 0 && at(0).enqueued ? &at(0) : nullptr;
  }
  Place* front_not_begun() {
    const std::lock_guard lock(mutex_);
    return count_ > 0 && !at(0).began ? &at(0) : nullptr;
  }

  void set_asking_since(Deadline::Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    asking_since_ = now;
  }

  Place& at(std::size_t index) noexcept { return places_[(front_ + index) % places_.size()]; }

  std::atomic<std::uint64_t> progress_{0};
  std::mutex looking_;
  mutable std::mutex mutex_;  ///< for all below, but the events
  std::array<Place, 64> places_;
  std::size_t front_ = 0;
  std::size_t count_ = 0;
  View seen_{};
  std::optional<Deadline::Clock::time_point> asking_since_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
