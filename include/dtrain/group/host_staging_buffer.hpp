#pragma once
/// @file
/// Host staging buffer: carries host memory through collectives of a backend that reduces device memory only.

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::group {

/// For backends of host memory there is nothing to do.
template <class Stream>
class HostStagingBuffer {
 public:
  static constexpr bool is_needed = false;
};

#if DTRAIN_WITH_CUDA

/// A loss or a count lives on the host; with a backend of device memory it is copied there and back, in chunks through
/// memory that was allocated with the group, for nothing is to be allocated beside running collectives. Threads: one.
template <>
class HostStagingBuffer<stream::cuda::StreamRef> {
 public:
  static constexpr bool is_needed = true;

  /// On the thread's current device. @throws Error (cuda)
  HostStagingBuffer() : pinned_(chunk_bytes), device_(chunk_bytes) {}

  /// `operate(chunk)` enqueues an in-place operation on device memory, at least once; then `output` has the results of
  /// all chunks. Blocking, by `wait()`, which returns when the stream has come so far, or throws.
  template <class Operate, class Wait>
  void copy_through(const ConstBufferView& input, const BufferView& output, stream::cuda::StreamRef stream,
                    Operate operate, Wait wait) const {
    using stream::cuda::check;
    const std::size_t most = chunk_bytes / size_bytes(input.dtype);
    std::size_t begin = 0;
    do {
      const std::size_t count = std::min(most, input.count - begin);
      const std::size_t offset = begin * size_bytes(input.dtype);
      const BufferView chunk{device_.data(), count, input.dtype, stream.device()};
      if (count != 0) {
        std::memcpy(pinned_.data(), input.data + offset, chunk.bytes());
        check(cudaMemcpyAsync(chunk.data, pinned_.data(), chunk.bytes(), cudaMemcpyHostToDevice, stream.native()),
              "cudaMemcpyAsync");
      }
      operate(chunk);
      if (count != 0) {
        check(cudaMemcpyAsync(pinned_.data(), chunk.data, chunk.bytes(), cudaMemcpyDeviceToHost, stream.native()),
              "cudaMemcpyAsync");
      }
      wait();
      if (count != 0) {
        std::memcpy(output.data + offset, pinned_.data(), chunk.bytes());
      }
      begin += count;
    } while (begin < input.count);
  }

 private:
  static constexpr std::size_t chunk_bytes = std::size_t{256} << 10;

  stream::cuda::PinnedBuffer pinned_;
  stream::cuda::DeviceBuffer device_;
};

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::group
