#pragma once
/// @file
/// The operations that run or wait in streams, and how long the one in front has run.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
/// last place stands for several operations, and its clock begins anew with each. Threads: one at a time.
class WatchRing {
 public:
  /// What is to be seen of the operation in front.
  struct View {
    bool idle = true;                    ///< no operation is in flight
    cudaError_t failure = cudaSuccess;   ///< of the device
    const Operation* running = nullptr;  ///< stays until the next call
    Deadline::Clock::time_point since{};
  };

  /// Makes the events, so that no operation has to. @throws Error (cuda)
  explicit WatchRing(int device) {
    const stream::cuda::Stream first(stream::cuda::Priority::normal, device);
    for (Place& place : places_) {
      first.ref().record(place.before);
      first.ref().record(place.behind);
    }
  }

  /// Before an operation is enqueued. @throws Error (cuda)
  void begin(const Operation& operation, stream::cuda::StreamRef stream) {
    if (count_ == places_.size()) {
      Place& last = at(count_ - 1);
      last.operation = operation;
      last.began.reset();
      last.enqueued = false;
      return;
    }
    Place& place = at(count_);
    stream.record(place.before);
    place.operation = operation;
    place.began.reset();
    place.enqueued = false;
    ++count_;
  }

  /// Behind it. @throws Error (cuda)
  void end(stream::cuda::StreamRef stream) {
    Place& place = at(count_ - 1);
    place.enqueued = true;  // also where it cannot be recorded anew: its place ends with an earlier operation then
    stream.record(place.behind);
  }

  /// Instead of end(), where it could not be enqueued.
  void give_up() noexcept { at(count_ - 1).enqueued = true; }

  /// How many places were found complete. Threads: any.
  std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_relaxed); }

  /// Forgets what is complete. Not in a thread that captures a stream.
  View look() {
    View view;
    for (; count_ > 0 && at(0).enqueued; --count_, front_ = (front_ + 1) % places_.size()) {
      view.failure = cudaEventQuery(at(0).behind.native());
      if (view.failure != cudaSuccess) {
        break;
      }
      progress_.fetch_add(1, std::memory_order_relaxed);
    }
    if (!stream::cuda::quiet(view.failure) && view.failure == cudaErrorNotReady) {
      view.failure = cudaSuccess;
    }
    view.idle = count_ == 0;
    if (!view.idle && !at(0).began && at(0).before.is_complete()) {
      at(0).began = Deadline::Clock::now();
    }
    if (!view.idle && at(0).began) {
      view.running = &at(0).operation;
      view.since = *at(0).began;
    }
    return view;
  }

 private:
  struct Place {
    Operation operation{};
    stream::cuda::Event before;
    stream::cuda::Event behind;
    bool enqueued = false;  ///< and `behind` recorded
    std::optional<Deadline::Clock::time_point> began{};
  };

  Place& at(std::size_t index) noexcept { return places_[(front_ + index) % places_.size()]; }

  std::array<Place, 64> places_;
  std::size_t front_ = 0;
  std::size_t count_ = 0;
  std::atomic<std::uint64_t> progress_{0};
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
