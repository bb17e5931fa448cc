#pragma once
/// @file
/// DeviceGuard: the thread's current CUDA device, changed for a scope. RelaxedCapture: CUDA's relaxed capture mode for
/// a scope.

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// The calling thread's current device. @throws Error (cuda)
inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Whether the process has a context on the device, which takes hundreds of megabytes of it. True without an answer.
inline bool has_context(int device) noexcept {
  using State = int (*)(int device, unsigned int* flags, int* active);
  static const auto state = reinterpret_cast<State>(driver_function("cuDevicePrimaryCtxGetState", 7000));
  unsigned int flags = 0;
  int active = 0;
  return state == nullptr || state(device, &flags, &active) != 0 || active != 0;
}

/// Makes `device` the thread's current device, and restores the previous device at the end of the scope. The guard does
/// not restore a device without a context, usually device 0 in a thread that never chose a device: cudaSetDevice would
/// make a context there. Threads: the thread that made the guard.
class DeviceGuard {
 public:
  /// @throws Error (cuda) for a device that does not exist
  explicit DeviceGuard(int device) : before_(current_device()), changed_(device != before_) {
    if (changed_) {
      check(cudaSetDevice(device), "cudaSetDevice");
    }
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (changed_ && has_context(before_)) {
      static_cast<void>(quiet(cudaSetDevice(before_)));
    }
  }

 private:
  int before_;
  bool changed_;
};

/// In its scope, this thread may query events and allocate although another thread captures a graph. By default CUDA
/// forbids these calls to all threads during a capture. Threads: the thread that made the object.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { exchange(); }

 private:
  void exchange() noexcept { static_cast<void>(quiet(cudaThreadExchangeStreamCaptureMode(&other_))); }

  cudaStreamCaptureMode other_ = cudaStreamCaptureModeRelaxed;  ///< the mode that this thread is not in
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
