#pragma once
/// @file
/// SquareSumKernel: sums of the squares of an array in device memory, for the host to add.

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/kernels/driver_kernel.hpp"
#include "dtrain/stream/cuda/kernels/square_sum_text.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// The kernel of square_sum_text(), for one type. Trivially copyable; valid until the process ends.
class SquareSumKernel {
 public:
  /// No kernel.
  SquareSumKernel() = default;

  /// The kernel for this type, or none if can_sum_squares() is false or the driver does not load it: see load().
  /// Threads: any.
  static SquareSumKernel find(DType dtype) {
    static std::mutex mutex;
    static SquareSumKernel found[types];
    if (!can_sum_squares(dtype)) {
      return {};
    }
    const std::lock_guard lock(mutex);
    SquareSumKernel& kernel = found[static_cast<std::size_t>(dtype)];
    if (!kernel) {
      kernel.kernel_ = DriverKernel::load(square_sum_text(dtype), square_sum_name);
    }
    return kernel;
  }

  /// Launches the kernel for no elements; it writes one sum, of 0, to `sums`. @returns whether the driver has loaded it
  /// for the stream's device: it does that when a kernel is first launched there
  static bool load(DType dtype, double* sums, StreamRef stream) {
    const SquareSumKernel kernel = find(dtype);
    if (!kernel) {
      return false;
    }
    try {
      kernel.launch(nullptr, 0, 1, sums, stream);
    } catch (const Error& error) {
      log_unloaded_kernel(error.what());
      return false;
    }
    return true;
  }

  explicit operator bool() const noexcept { return static_cast<bool>(kernel_); }

  /// Enqueued: writes square_sum_blocks(bytes of `array`) sums, at least one. Requires: a kernel of the array's type;
  /// address and bytes are multiples of square_sum_bytes. Lifetime: the memory outlives the work.
  /// @param sums pinned or device memory @throws Error (cuda)
  void enqueue(const BufferView& array, double* sums, StreamRef stream) const {
    launch(array.data, array.bytes(), square_sum_blocks(array.bytes()), sums, stream);
  }

 private:
  /// Enumerators up to the last that can_sum_squares() takes.
  static constexpr std::size_t types = static_cast<std::size_t>(DType::bf16) + 1;

  void launch(const std::byte* array, std::uint64_t bytes, std::uint32_t blocks, double* sums, StreamRef stream) const {
    const DeviceGuard guard(stream.device().index);
    void* arguments[] = {&array, &bytes, &sums};
    kernel_.launch(blocks, square_sum_threads, arguments, stream);
  }

  DriverKernel kernel_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
