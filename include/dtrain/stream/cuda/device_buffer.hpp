#pragma once
/// @file
/// DeviceBuffer: owner of a CUDA device's memory; freeing may block. StreamOrderedBuffer: memory allocated and freed in
/// a stream's order, without blocking.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <cstddef>
#include <memory>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"
#include "dtrain/stream/stream.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Owns memory of one device, aligned to 256 bytes; the host cannot read it. Lifetime: outlives all work on it.
/// Blocking: allocating and freeing may wait for the whole device.
/// @ingroup streams
class DeviceBuffer {
 public:
  DeviceBuffer() noexcept = default;

  /// Memory of the thread's current device. @throws Error (cuda: cudaErrorMemoryAllocation among them)
  explicit DeviceBuffer(std::size_t bytes) : DeviceBuffer(bytes, current_device()) {}

  DeviceBuffer(std::size_t bytes, int device) : bytes_(bytes), device_(device) {
    const DeviceGuard guard(device);
    void* memory = nullptr;
    const cudaError_t code = bytes == 0 ? cudaSuccess : cudaMalloc(&memory, bytes);
    if (code != cudaSuccess) {
      throw cuda_error(code, format_text("cudaMalloc of {} bytes", {bytes}));
    }
    data_.reset(static_cast<std::byte*>(memory));
  }

  std::byte* data() const noexcept { return data_.get(); }
  std::size_t bytes() const noexcept { return data_ ? bytes_ : 0; }
  int device() const noexcept { return device_; }

 private:
  std::unique_ptr<std::byte, ReleasedBy<cudaFree>> data_;
  std::size_t bytes_ = 0;
  int device_ = 0;
};

/// Blocking: until `stream` has filled the memory with zeros. @throws Error (timeout, cuda)
inline void zero_blocking(void* data, std::size_t bytes, StreamRef stream, Deadline deadline) {
  if (bytes == 0) {
    return;
  }
  check(cudaMemsetAsync(data, 0, bytes, stream.native()), "cudaMemsetAsync");
  Event zeroed;
  stream.record(zeroed);
  if (zeroed.block_until_complete(deadline) != WaitResult::complete) {
    throw_error(Errc::timeout,
                "filling {} bytes of device memory with zeros had not ended in time; is the device busy, or does a "
                "kernel hang?",
                {bytes});
  }
}

/// Owns memory of a stream's device for work on that stream. Construction and destruction do not block: the memory is
/// freed when the stream reaches the destruction. cudaFree would wait for the whole device, and so for reductions that
/// wait for other ranks. Lifetime: the stream outlives it.
class StreamOrderedBuffer {
 public:
  /// data() is null if the device has no memory left, or has no memory pools.
  StreamOrderedBuffer(std::size_t bytes, StreamRef stream) noexcept : bytes_(bytes), stream_(stream) {
    const DeviceGuard guard(stream.device().index);
    if (!quiet(cudaMallocAsync(&data_, bytes, stream.native()))) {
      data_ = nullptr;
    }
  }
  StreamOrderedBuffer(const StreamOrderedBuffer&) = delete;
  StreamOrderedBuffer& operator=(const StreamOrderedBuffer&) = delete;
  ~StreamOrderedBuffer() {
    if (data_ != nullptr) {
      const DeviceGuard guard(stream_.device().index);
      static_cast<void>(quiet(cudaFreeAsync(data_, stream_.native())));
    }
  }

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const noexcept { return data_ != nullptr ? bytes_ : 0; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
  StreamRef stream_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
