#pragma once
/// @file
/// ChunkCopies: the copies of one chunk to the host and back.

#include <cstddef>
#include <memory>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/staged/chunk_plan.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

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
