#pragma once
/// @file
/// ChunkPlan: the chunks in which an operation on device memory passes through host memory; ChunkCopies: the copies of
/// one chunk to the host and back.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend::staged {

/// Host memory of one chunk outside allocations. Small enough that its copies, its reduction and its neighbours' copies
/// overlap; large enough that starting them costs little in comparison.
inline constexpr std::size_t slot_bytes = std::size_t{1} << 20;

/// Number of such slots, and so of chunks in flight in them.
inline constexpr std::size_t slots = 4;

/// Elements [begin, begin + count) of a buffer.
struct ElementRange {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Chunks of `length` elements, the last one shorter. Without elements there is one empty chunk, since every rank takes
/// part. Depends only on values that are the same on every rank of an operation, neither on memory nor on time.
/// Example: 10 elements of 4 bytes in 16 bytes of room: [0, 4), [4, 8), [8, 10).
class ChunkPlan {
 public:
  /// @param room bytes of host memory per chunk  @param blocks the buffer's blocks; a chunk has elements of each
  ChunkPlan(std::size_t count, std::size_t element, std::size_t room, std::size_t blocks = 1) noexcept
      : count_(count), length_(std::max<std::size_t>(1, room / (element * blocks))) {}

  std::size_t size() const noexcept { return std::max<std::size_t>(1, (count_ + length_ - 1) / length_); }

  /// The index-th chunk; empty behind the end.
  ElementRange operator[](std::size_t index) const noexcept {
    const std::size_t begin = std::min(count_, index * length_);
    return {begin, std::min(length_, count_ - begin)};
  }

 private:
  std::size_t count_;
  std::size_t length_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// `rows` rows of `bytes`: contiguous in host memory, `stride` bytes apart on the device; nothing to copy without rows.
/// Not const-correct: also used for read-only buffers, which are never written.
struct StridedCopy {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::size_t bytes = 0;
  std::size_t rows = 0;
  std::size_t stride = 0;
};

/// Copies of a chunk, and operands of the inner operation in the same host memory.
struct ChunkCopies {
  StridedCopy to_host{};
  StridedCopy to_device{};
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t input_count = 0;
  std::size_t output_count = 0;
  std::vector<StridedCopy> blocks_to_host{};  ///< further copies, of an operation with blocks
  std::vector<StridedCopy> blocks_to_device{};
  std::unique_ptr<const BlockExchange> blocks{};  ///< of the operands
};

/// Copy of one chunk of a buffer.
inline StridedCopy copy_of(const std::byte* device, std::byte* host, ElementRange chunk, std::size_t element) noexcept {
  std::byte* const begin = device == nullptr ? nullptr : const_cast<std::byte*>(device) + chunk.begin * element;
  return {begin, host, chunk.count * element, 1, 0};
}

/// Copy of the same chunk of each of the buffer's `blocks` blocks of `length` elements.
inline StridedCopy copy_of_blocks(const std::byte* device, std::byte* host, ElementRange chunk, std::size_t element,
                                  std::size_t blocks, std::size_t length) noexcept {
  StridedCopy rows = copy_of(device, host, chunk, element);
  rows.rows = blocks;
  rows.stride = length * element;
  return rows;
}

/// Enqueued. @throws Error (cuda)
inline void copy_to_host(const StridedCopy& copy, stream::cuda::StreamRef stream) {
  for (std::size_t row = 0; row < (copy.bytes == 0 ? 0 : copy.rows); ++row) {
    stream::cuda::check(cudaMemcpyAsync(copy.host + row * copy.bytes, copy.device + row * copy.stride, copy.bytes,
                                        cudaMemcpyDeviceToHost, stream.native()),
                        "cudaMemcpyAsync from the device");
  }
}

/// Enqueued. @throws Error (cuda)
inline void copy_to_device(const StridedCopy& copy, stream::cuda::StreamRef stream) {
  for (std::size_t row = 0; row < (copy.bytes == 0 ? 0 : copy.rows); ++row) {
    stream::cuda::check(cudaMemcpyAsync(copy.device + row * copy.stride, copy.host + row * copy.bytes, copy.bytes,
                                        cudaMemcpyHostToDevice, stream.native()),
                        "cudaMemcpyAsync to the device");
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
