#pragma once
/// @file
/// DeviceBounceBuffer: copies the host memory of a collective through the device for a device-only backend.

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
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

  /// An all_gather in chunks: `operate(mine, all)` enqueues one on device memory. Blocking: as copy_through.
  template <class Operate, class Wait>
  void gather_through(const ConstBufferView& input, const BufferView& output, std::size_t rank, std::size_t ranks,
                      stream::cuda::StreamRef stream, Operate operate, Wait wait) const {
    using stream::cuda::check;
    const std::size_t element = size_bytes(input.dtype);
    const std::size_t most = chunk_bytes / (element * ranks);
    if (most == 0) {
      throw_error(Errc::unsupported, "an all_gather of host memory over {} ranks; give device memory", {ranks});
    }
    std::size_t begin = 0;
    do {
      const std::size_t count = std::min(most, input.count - begin);
      const BufferView all{device_.data(), count * ranks, input.dtype, stream.device()};
      const BufferView mine{all.data + rank * count * element, count, input.dtype, stream.device()};
      if (count != 0) {
        std::memcpy(pinned_.data(), input.data + begin * element, mine.bytes());
        check(cudaMemcpyAsync(mine.data, pinned_.data(), mine.bytes(), cudaMemcpyHostToDevice, stream.native()),
              "cudaMemcpyAsync");
      }
      operate(mine, all);
      if (count != 0) {
        check(cudaMemcpyAsync(pinned_.data(), all.data, all.bytes(), cudaMemcpyDeviceToHost, stream.native()),
              "cudaMemcpyAsync");
      }
      wait();
      for (std::size_t r = 0; r < ranks && count != 0; ++r) {
        std::memcpy(output.data + (r * input.count + begin) * element, pinned_.data() + r * mine.bytes(), mine.bytes());
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
