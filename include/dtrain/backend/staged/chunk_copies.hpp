#pragma once
/// @file
/// ChunkPlan: the chunks in which operations on device memory pass through host memory, equal on every rank.
/// ChunkCopies: one chunk's copies.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
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

  /// The index-th chunk; empty after the end.
  ElementRange operator[](std::size_t index) const noexcept {
    const std::size_t begin = std::min(count_, index * length_);
    return {begin, std::min(length_, count_ - begin)};
  }

 private:
  std::size_t count_;
  std::size_t length_;
};

#if DTRAIN_WITH_CUDA

/// `rows` rows of `bytes`: contiguous in host memory, `stride` bytes apart on the device; nothing to copy without rows.
/// Not const-correct: also used for read-only buffers, which are never written.
struct StridedCopy {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::size_t bytes = 0;
  std::size_t rows = 0;
  std::size_t stride = 0;
};

/// Operands of the inner operation on a chunk.
struct HostOperands {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t input_count = 0;
  std::size_t output_count = 0;
  std::unique_ptr<const BlockExchange> blocks{};  ///< null unless the operation reduces blocks
};

/// Copies of a chunk, and operands of the inner operation in the same host memory.
struct ChunkCopies {
  StridedCopy to_host{};
  StridedCopy to_device{};
  HostOperands host{};
  std::vector<StridedCopy> blocks_to_host{};  ///< further copies, of a reduction of blocks
  std::vector<StridedCopy> blocks_to_device{};
};

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
inline void enqueue_copy(const StridedCopy& copy, cudaMemcpyKind direction, stream::cuda::StreamRef stream) {
  const bool to_host = direction == cudaMemcpyDeviceToHost;
  for (std::size_t row = 0; row < (copy.bytes == 0 ? 0 : copy.rows); ++row) {
    std::byte* const host = copy.host + row * copy.bytes;
    std::byte* const device = copy.device + row * copy.stride;
    stream::cuda::check(
        cudaMemcpyAsync(to_host ? host : device, to_host ? device : host, copy.bytes, direction, stream.native()),
        to_host ? "cudaMemcpyAsync from the device" : "cudaMemcpyAsync to the device");
  }
}

/// Arguments of the operation on device memory. Lifetime: `blocks` outlives it.
struct BlockOperands {
  const BlockExchange& blocks;
  ConstBufferView input;
  BufferView output;
  int rank;
  std::size_t room;  ///< bytes of a slot: the first half is for the input, the second for the output

  std::size_t element() const noexcept { return size_bytes(input.dtype); }
};

namespace detail {

/// Copies between device and host, one piece after the other in host memory.
class PackedPieces {
 public:
  PackedPieces(std::byte* host, std::size_t element, std::vector<StridedCopy>& copies) noexcept
      : host_(host), element_(element), copies_(copies) {}

  /// Adds a piece of the device memory. @returns its place in host memory
  BlockRange add(const std::byte* device, const BlockRange& piece) {
    if (piece.count == 0) {
      return {};
    }
    const BlockRange packed{end_, piece.count};
    end_ += piece.count;
    copies_.push_back({const_cast<std::byte*>(device) + piece.offset * element_, host_ + packed.offset * element_,
                       piece.count * element_, 1, 0});
    return packed;
  }

  std::uint64_t elements() const noexcept { return end_; }

 private:
  std::byte* host_;
  std::size_t element_;
  std::vector<StridedCopy>& copies_;
  std::uint64_t end_ = 0;
};

}  // namespace detail

/// All ranks have the same chunks, and each is the inner backend's operation.
class ReductionChunks {
 public:
  explicit ReductionChunks(const BlockOperands& operands) noexcept
      : operands_(operands), pieces_(operands.blocks, operands.room / 2 / operands.element()) {}

  std::size_t size() const noexcept { return pieces_.chunks(); }

  ChunkCopies operator()(std::size_t index, std::byte* slot) const {
    const BlockExchange& blocks = operands_.blocks;
    const auto self = static_cast<std::size_t>(operands_.rank);
    ChunkCopies made;
    made.host.input = slot;
    made.host.output = slot + operands_.room / 2;
    detail::PackedPieces sent(made.host.input, operands_.element(), made.blocks_to_host);
    detail::PackedPieces received(made.host.output, operands_.element(), made.blocks_to_device);
    BlockExchange packed{blocks.kind, blocks.root, blocks.count, {}, {}};
    for (std::size_t rank = 0; rank < blocks.sent.size(); ++rank) {
      const BlockRange piece = pieces_.piece(rank, index);
      packed.sent.push_back(sent.add(operands_.input.data, {blocks.sent[rank].offset + piece.offset, piece.count}));
    }
    const BlockRange own = blocks.connects(operands_.rank, operands_.rank) ? pieces_.piece(self, index) : BlockRange{};
    packed.received.assign(blocks.sent.size(), received.add(operands_.output.data, own));
    made.host.input_count = sent.elements();
    made.host.output_count = received.elements();
    made.host.blocks = std::make_unique<const BlockExchange>(std::move(packed));
    return made;
  }

 private:
  BlockOperands operands_;
  BlockPieces pieces_;
};

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::backend::staged
