#pragma once
/// @file
/// DriverKernel: a kernel that the CUDA driver loads from PTX text.

#include <cstdint>
#include <mutex>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/driver_function.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

namespace driver {

using LibraryLoadData = int (*)(void** library, const void* text, int* options, void** values, unsigned int count,
                                int* library_options, void** library_values, unsigned int library_count);
using LibraryGetKernel = int (*)(void** kernel, void* library, const char* name);
using LaunchKernel = int (*)(void* kernel, unsigned int blocks_x, unsigned int blocks_y, unsigned int blocks_z,
                             unsigned int threads_x, unsigned int threads_y, unsigned int threads_z,
                             unsigned int shared_bytes, cudaStream_t stream, void** parameters, void** extra);

}  // namespace driver

/// Logs the reason for which the driver did not load a kernel, unless it was logged last: later kernels have the same
/// reason. Threads: any.
inline void log_unloaded_kernel(const std::string& why) {
  static std::mutex mutex;
  static std::string& last = *new std::string;  // threads may log until the process ends
  const std::lock_guard lock(mutex);
  if (why != last) {
    last = why;
    log(LogLevel::warning,
        format_text("the CUDA driver does not load dtrain's kernels ({}): averages are left to NCCL, unbound gradients "
                    "are copied one by one, and measure_norm and hooks::Cast are refused on this device",
                    {why}));
  }
}

/// A kernel of the driver. Trivially copyable; valid until the process ends.
class DriverKernel {
 public:
  /// No kernel.
  DriverKernel() = default;

  /// The entry `name` of the text; none if the driver does not load it, which is logged. The driver may compile the
  /// text as late as at the first launch on a device, and fail then.
  static DriverKernel load(const std::string& text, const char* name) {
    constexpr unsigned int version = 12000;
    const auto load_data = reinterpret_cast<driver::LibraryLoadData>(driver_function("cuLibraryLoadData", version));
    const auto get_kernel = reinterpret_cast<driver::LibraryGetKernel>(driver_function("cuLibraryGetKernel", version));
    const auto launch = reinterpret_cast<driver::LaunchKernel>(driver_function("cuLaunchKernel", 4000));
    DriverKernel kernel;
    if (load_data == nullptr || get_kernel == nullptr || launch == nullptr) {
      log_unloaded_kernel("it is older than CUDA 12");
      return kernel;
    }
    void* library = nullptr;
    void* loaded = nullptr;
    if (const int code = load_data(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0)) {
      log_unloaded_kernel(cuda_error(static_cast<cudaError_t>(code), "cuLibraryLoadData").what());
    } else if (const int missing = get_kernel(&loaded, library, name)) {
      log_unloaded_kernel(cuda_error(static_cast<cudaError_t>(missing), "cuLibraryGetKernel").what());
    } else {
      kernel.kernel_ = loaded;
      kernel.launch_ = launch;
    }
    return kernel;
  }

  explicit operator bool() const noexcept { return kernel_ != nullptr; }

  /// Enqueues a launch. Requires: a kernel; the stream's device is the thread's current device.
  /// @param arguments addresses of the parameters, which the launch copies @throws Error (cuda)
  void launch(std::uint32_t blocks, std::uint32_t threads, void** arguments, StreamRef stream) const {
    bind_context(stream.device().index);
    const int code = launch_(kernel_, blocks, 1, 1, threads, 1, 1, 0, stream.native(), arguments, nullptr);
    check(static_cast<cudaError_t>(code), "cuLaunchKernel");  // the numbers are the same
  }

 private:
  void* kernel_ = nullptr;
  driver::LaunchKernel launch_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
