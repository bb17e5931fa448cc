#pragma once
/// @file
/// TimingEvent: a point in a CUDA stream, with the time at which the device reached it. DeviceTimes records it.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <chrono>
#include <memory>
#include <optional>
#include <type_traits>

#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Owns a cudaEvent_t with timing, which costs the device more than an Event. Threads: any, except during a record.
class TimingEvent {
 public:
  /// @throws Error (cuda)
  explicit TimingEvent(int device) {
    const DeviceGuard guard(device);
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
    event_.reset(event);
  }

  /// Enqueues the point on a stream of the device that is not captured. @throws Error (cuda)
  void record(StreamRef stream) { check(cudaEventRecord(event_.get(), stream.native()), "cudaEventRecord"); }

  /// Also false if the device has failed. Not while a stream is being captured, except under RelaxedCapture.
  bool is_complete() const noexcept { return quiet(cudaEventQuery(event_.get())); }

  /// Device time between two events, negative if `to` was first. Empty if an event is not complete, or the time is
  /// unknown.
  friend std::optional<std::chrono::nanoseconds> between(const TimingEvent& from, const TimingEvent& to) noexcept {
    float milliseconds = 0;
    if (!quiet(cudaEventElapsedTime(&milliseconds, from.event_.get(), to.event_.get()))) {
      return std::nullopt;
    }
    return std::chrono::nanoseconds(
        static_cast<std::chrono::nanoseconds::rep>(static_cast<double>(milliseconds) * 1e6));
  }

 private:
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, ReleasedBy<cudaEventDestroy>> event_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
