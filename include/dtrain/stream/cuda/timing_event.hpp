#pragma once
/// @file
/// A point in a CUDA stream that knows when the device came to it.

#include <chrono>
#include <optional>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Owns a cudaEvent_t with timing, which costs the device more than an Event. Threads: not while another thread records
/// it.
class TimingEvent {
 public:
  /// @throws Error (cuda)
  explicit TimingEvent(int device) {
    const DeviceGuard guard(device);
    check(cudaEventCreateWithFlags(&event_, cudaEventDefault), "cudaEventCreateWithFlags");
  }
  TimingEvent(TimingEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  TimingEvent& operator=(TimingEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~TimingEvent() {
    if (event_ != nullptr) {
      static_cast<void>(quiet(cudaEventDestroy(event_)));
    }
  }

  /// Enqueued, on a stream of the device. Not where the stream is captured. @throws Error (cuda)
  void record(StreamRef stream) { check(cudaEventRecord(event_, stream.native()), "cudaEventRecord"); }

  /// False too where the device has failed. Not while a stream is being captured, unless under RelaxedCapture.
  bool is_complete() const noexcept { return quiet(cudaEventQuery(event_)); }

  /// What passed on the device from one to the other, less than nothing where `to` was first; nothing where one of them
  /// is not complete or the device does not say.
  friend std::optional<std::chrono::nanoseconds> between(const TimingEvent& from, const TimingEvent& to) noexcept {
    float milliseconds = 0;
    if (!quiet(cudaEventElapsedTime(&milliseconds, from.event_, to.event_))) {
      return std::nullopt;
    }
    return std::chrono::nanoseconds(
        static_cast<std::chrono::nanoseconds::rep>(static_cast<double>(milliseconds) * 1e6));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
