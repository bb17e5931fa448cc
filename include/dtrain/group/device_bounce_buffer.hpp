#pragma once
/// @file
/// Bounce buffer on the device: collectives.hpp copies host memory there and back for a device-only backend.

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

/// Backends of host memory need no bounce buffer.
template <class Stream>
class DeviceBounceBuffer {
 public:
  static constexpr bool is_needed = false;
};

#if DTRAIN_WITH_CUDA

/// With a backend of device memory, a value on the host (a loss, a count) is copied to the device and back in chunks.
/// The memory is allocated with the group, because no memory may be allocated while collectives run. Threads: one.
template <>
class DeviceBounceBuffer<stream::cuda::StreamRef> {
 public:
  static constexpr bool is_needed = true;

  /// Allocates on the thread's current device. @throws Error (cuda)
  DeviceBounceBuffer() : pinned_(chunk_bytes), device_(chunk_bytes) {}

  /// Calls `operate(chunk)`, at least once, to enqueue an in-place operation on device memory. Then `output` has the
  /// results of all chunks. Blocking: by `wait()`, which returns once the stream has completed the chunk, or throws.
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
