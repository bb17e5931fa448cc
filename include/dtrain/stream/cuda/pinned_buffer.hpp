#pragma once
/// @file
/// PinnedBuffer: host memory for copies by devices.

#include <cstddef>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Owns pinned memory at the same address for the host and for every device. Lifetime: outlives all work on it.
/// Blocking: allocating and freeing may wait for the whole device.
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
    data_ = static_cast<std::byte*>(memory);
  }

  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) {
      static_cast<void>(quiet(cudaFreeHost(data_)));
    }
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
