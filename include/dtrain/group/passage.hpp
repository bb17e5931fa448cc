#pragma once
/// @file
/// How host memory takes part in a collective of a backend that reduces device memory only.

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "dtrain/core/buffer_view.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::group {

/// For backends of host memory there is nothing to do.
template <class Stream>
class Passage {
 public:
  static constexpr bool is_needed = false;
};

#if DTRAIN_WITH_CUDA

/// A loss or a count lives on the host; with a backend of device memory it goes there and back, in pieces through
/// memory that was allocated with the group, for nothing is to be allocated beside running collectives. Threads: one.
template <>
class Passage<stream::cuda::StreamRef> {
 public:
  static constexpr bool is_needed = true;

  /// On the thread's current device. @throws Error (cuda)
  Passage() : pinned_(piece_bytes), device_(piece_bytes) {}

  /// `operate(piece)` enqueues an in-place operation on device memory, at least once; then `output` has the results of
  /// all pieces. Blocking, by `wait()`, which returns when the stream has come so far, or throws.
  template <class Operate, class Wait>
  void pass(const ConstBufferView& input, const BufferView& output, stream::cuda::StreamRef stream, Operate operate,
            Wait wait) const {
    using stream::cuda::check;
    const std::size_t most = piece_bytes / size_bytes(input.dtype);
    std::size_t begin = 0;
    do {
      const std::size_t count = std::min(most, input.count - begin);
      const std::size_t offset = begin * size_bytes(input.dtype);
      const BufferView piece{device_.data(), count, input.dtype, stream.device()};
      if (count != 0) {
        std::memcpy(pinned_.data(), input.data + offset, piece.bytes());
        check(cudaMemcpyAsync(piece.data, pinned_.data(), piece.bytes(), cudaMemcpyHostToDevice, stream.native()),
              "cudaMemcpyAsync");
      }
      operate(piece);
      if (count != 0) {
        check(cudaMemcpyAsync(pinned_.data(), piece.data, piece.bytes(), cudaMemcpyDeviceToHost, stream.native()),
              "cudaMemcpyAsync");
      }
      wait();
      if (count != 0) {
        std::memcpy(output.data + offset, pinned_.data(), piece.bytes());
      }
      begin += count;
    } while (begin < input.count);
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{256} << 10;

  stream::cuda::PinnedBuffer pinned_;
  stream::cuda::DeviceBuffer device_;
};

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::group
