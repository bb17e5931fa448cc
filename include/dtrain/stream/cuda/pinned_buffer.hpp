#pragma once
/// @file
/// PinnedBuffer: pinned host memory at one address for all devices. HostRegistration: borrowed host memory, pinned for
/// a scope.

#include <cstddef>
#include <memory>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Pins memory that begins with a page, so that devices copy from and to it without the processor. Lifetime: the memory
/// outlives the registration, which outlives all work on the memory. Blocking: construction and destruction may wait
/// for the device.
class HostRegistration {
 public:
  /// @throws Error (cuda)
  HostRegistration(std::byte* data, std::size_t bytes) {
    if (bytes == 0) {
      return;
    }
    const cudaError_t code = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (code != cudaSuccess) {
      throw cuda_error(code, format_text("cudaHostRegister of {} bytes", {bytes}),
                       "look at how much memory may be locked (ulimit -l)");
    }
    data_.reset(data);
  }

 private:
  std::unique_ptr<std::byte, ReleasedBy<cudaHostUnregister>> data_;
};

/// Owns pinned memory at the same address for the host and for every device. Lifetime: outlives all work on it.
/// Blocking: allocating and freeing may wait for the whole device.
/// @ingroup streams
class PinnedBuffer {
 public:
  PinnedBuffer() noexcept = default;

  /// @throws Error (cuda: cudaErrorMemoryAllocation among them)
  explicit PinnedBuffer(std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    const cudaError_t code =
        bytes == 0 ? cudaSuccess : cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (code != cudaSuccess) {
      throw cuda_error(code, format_text("cudaHostAlloc of {} bytes", {bytes}));
    }
    data_.reset(static_cast<std::byte*>(memory));
  }

  std::byte* data() const noexcept { return data_.get(); }
  std::size_t bytes() const noexcept { return data_ ? bytes_ : 0; }

 private:
  std::unique_ptr<std::byte, ReleasedBy<cudaFreeHost>> data_;
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
