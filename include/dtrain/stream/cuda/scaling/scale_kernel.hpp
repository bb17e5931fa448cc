#pragma once
/// @file
/// ScaleKernel: the scaling kernel of two element types, loaded by the CUDA driver.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/driver_function.hpp"
#include "dtrain/stream/cuda/scaling/scale_kernel_text.hpp"
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

/// The kernel of scale_kernel_text(), for one pair of types. Trivially copyable; valid until the process ends.
class ScaleKernel {
 public:
  /// No kernel.
  ScaleKernel() = default;

  /// The kernel for these types, or none if can_scale() is false or the driver does not load it. The driver may compile
  /// the text as late as at the first launch, and fail then: see ScaledCopyBatch::load. Threads: any.
  static ScaleKernel find(DType from, DType to) {
    static std::mutex mutex;
    static ScaleKernel found[types][types];
    if (!can_scale(from, to)) {
      return {};
    }
    const std::lock_guard lock(mutex);
    ScaleKernel& kernel = found[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
    if (!kernel) {
      kernel = load(from, to);
    }
    return kernel;
  }

  explicit operator bool() const noexcept { return kernel_ != nullptr; }

  /// Enqueued. Requires: the stream's device is the thread's current one; 1 <= count <= max_scale_entries.
  /// @param blocks of all entries @throws Error (cuda)
  void launch(const ScaleKernelEntry* entries, std::size_t count, std::uint32_t blocks, double factor,
              StreamRef stream) const {
    ScaleKernelEntry parameter[max_scale_entries] = {};
    std::copy_n(entries, count, parameter);
    auto entry_count = static_cast<std::uint32_t>(count);
    auto single = static_cast<float>(factor);
    void* arguments[] = {parameter, &entry_count, is_double_ ? static_cast<void*>(&factor) : &single};
    const int code = launch_(kernel_, blocks, 1, 1, scale_block_threads, 1, 1, 0, stream.native(), arguments, nullptr);
    check(static_cast<cudaError_t>(code), "cuLaunchKernel");  // the numbers are the same
  }

 private:
  /// Enumerators up to the last that can_scale() takes.
  static constexpr std::size_t types = static_cast<std::size_t>(DType::bf16) + 1;

  static ScaleKernel load(DType from, DType to) {
    constexpr unsigned int version = 12000;
    const auto load_data = reinterpret_cast<driver::LibraryLoadData>(driver_function("cuLibraryLoadData", version));
    const auto get_kernel = reinterpret_cast<driver::LibraryGetKernel>(driver_function("cuLibraryGetKernel", version));
    const auto launch = reinterpret_cast<driver::LaunchKernel>(driver_function("cuLaunchKernel", 4000));
    ScaleKernel kernel;
    if (load_data == nullptr || get_kernel == nullptr || launch == nullptr) {
      return kernel;
    }
    const std::string text = scale_kernel_text(from, to);
    void* library = nullptr;
    void* loaded = nullptr;
    if (load_data(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) == 0 &&
        get_kernel(&loaded, library, scale_kernel_name) == 0) {
      kernel.kernel_ = loaded;
      kernel.launch_ = launch;
      kernel.is_double_ = from == DType::f64;
    }
    return kernel;
  }

  void* kernel_ = nullptr;
  driver::LaunchKernel launch_ = nullptr;
  bool is_double_ = false;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
