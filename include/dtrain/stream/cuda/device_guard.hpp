#pragma once
/// @file
/// The thread's current CUDA device, changed for a scope.

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

/// Makes `device` the thread's current one, and gives the thread back what it had. Threads: the one that made it.
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
    if (changed_) {
      static_cast<void>(quiet(cudaSetDevice(before_)));
    }
  }

 private:
  int before_;
  bool changed_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
