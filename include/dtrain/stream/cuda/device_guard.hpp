#pragma once
/// @file
/// The thread's current CUDA device, changed for a scope.

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/driver_function.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// The calling thread's current device. @throws Error (cuda)
inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Whether the process has a context on the device, which takes hundreds of megabytes of it; true where the driver does
/// not say.
inline bool has_context(int device) noexcept {
  using State = int (*)(int device, unsigned int* flags, int* active);
  static const auto state = reinterpret_cast<State>(driver_function("cuDevicePrimaryCtxGetState", 7000));
  unsigned int flags = 0;
  int active = 0;
  return state == nullptr || state(device, &flags, &active) != 0 || active != 0;
}

/// Makes `device` the thread's current one, and gives the thread back what it had. Not where that has no context:
/// cudaSetDevice would make one, on device 0 as a rule, which every thread has that never chose. Threads: the one that
/// made it.
class DeviceGuard {
 public:
  /// @throws Error (cuda) for a device that is not there
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

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
