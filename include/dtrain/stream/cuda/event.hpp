#pragma once
/// @file
/// Event: a point in a CUDA stream. StreamRef records it; ddp/, Nccl and Staged wait for it.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <type_traits>

#include "dtrain/core/deadline.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/stream.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Owns a cudaEvent_t without timing, made by the first record on the recording stream's device. An event never
/// recorded is complete. Threads: any thread polls and waits, but not while another thread records.
/// @ingroup streams
class Event {
 public:
  /// Whether the event is complete; false if the device has failed: block_until_complete() throws the device's error.
  /// Not while a stream is being captured, because this call would break the capture.
  bool is_complete() const noexcept { return event_ == nullptr || quiet(cudaEventQuery(native())); }

  /// As is_complete(), for a thread that captures nothing while another thread captures.
  bool is_complete_beside_capture() const noexcept {
    const RelaxedCapture relaxed;
    return is_complete();
  }

  /// Blocking: polls, for 50 us without a pause, then every 100 us, since the runtime's own wait has no deadline. A
  /// sleep ends late by Linux's timer slack, 50 us.
  /// @throws Error (cuda) if the device has failed, by this event's work or other work
  WaitResult block_until_complete(Deadline deadline) const {
    constexpr std::chrono::microseconds longest_sleep{100};
    const Deadline spin = Deadline::after(std::chrono::microseconds(50));
    std::chrono::microseconds sleep{1};
    while (!poll()) {
      if (deadline.passed()) {
        return poll() ? WaitResult::complete : WaitResult::timed_out;
      }
      if (!spin.passed()) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(sleep);
        sleep = std::min(2 * sleep, longest_sleep);
      }
    }
    return WaitResult::complete;
  }

  /// For calls of the runtime; null before the first record.
  cudaEvent_t native() const noexcept { return event_.get(); }

 private:
  friend class StreamRef;

  void record(cudaStream_t stream, int device) {
    if (event_ == nullptr || device != device_) {
      event_.reset();
      const DeviceGuard guard(device);
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
      event_.reset(event);
      device_ = device;
    }
    check(cudaEventRecord(native(), stream), "cudaEventRecord");
  }

  bool poll() const {
    const cudaError_t code = event_ == nullptr ? cudaSuccess : cudaEventQuery(native());
    if (code != cudaErrorNotReady) {
      check(code, "cudaEventQuery");
    }
    return quiet(code);
  }

  /// The runtime keeps a destroyed event until it completes.
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, ReleasedBy<cudaEventDestroy>> event_;
  int device_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
