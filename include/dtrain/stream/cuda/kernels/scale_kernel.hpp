#pragma once
/// @file
/// ScaleKernel: the scaling kernel of two element types, loaded by the CUDA driver.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/kernels/driver_kernel.hpp"
#include "dtrain/stream/cuda/kernels/scale_kernel_text.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

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
      kernel.kernel_ = DriverKernel::load(scale_kernel_text(from, to), scale_kernel_name);
      kernel.is_double_ = from == DType::f64;
    }
    return kernel;
  }

  explicit operator bool() const noexcept { return static_cast<bool>(kernel_); }

  /// Enqueued. Requires: the stream's device is the thread's current one; 1 <= count <= max_scale_entries.
  /// @param blocks of all entries @throws Error (cuda)
  void launch(const ScaleKernelEntry* entries, std::size_t count, std::uint32_t blocks, double factor,
              StreamRef stream) const {
    ScaleKernelEntry parameter[max_scale_entries] = {};
    std::copy_n(entries, count, parameter);
    auto entry_count = static_cast<std::uint32_t>(count);
    auto single = static_cast<float>(factor);
    void* arguments[] = {parameter, &entry_count, is_double_ ? static_cast<void*>(&factor) : &single};
    kernel_.launch(blocks, scale_block_threads, arguments, stream);
  }

 private:
  /// Enumerators up to the last that can_scale() takes.
  static constexpr std::size_t types = static_cast<std::size_t>(DType::bf16) + 1;

  DriverKernel kernel_;
  bool is_double_ = false;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
