#pragma once
/// @file
/// Chunks of an exchange or a reduction of blocks: pieces packed in host memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/staged/chunk_copies.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

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

  /// Adds a piece of the device memory, once if the same one is added several times in turn. @returns where it is
  BlockRange add(const std::byte* device, const BlockRange& piece) {
    if (piece.count == 0) {
      return {};
    }
    if (piece.offset != last_.offset || piece.count != last_.count) {
      packed_ = {end_, piece.count};
      end_ += piece.count;
      last_ = piece;
      copies_.push_back({const_cast<std::byte*>(device) + piece.offset * element_, host_ + packed_.offset * element_,
                         piece.count * element_, 1, 0});
    }
    return packed_;
  }

  std::uint64_t elements() const noexcept { return end_; }

 private:
  std::byte* host_;
  std::size_t element_;
  std::vector<StridedCopy>& copies_;
  BlockRange last_{};
  BlockRange packed_{};
  std::uint64_t end_ = 0;
};

}  // namespace detail

/// All blocks are cut at the same length. The first chunk is the inner backend's operation, which compares the calls.
/// Ranks have different numbers of further chunks, which are messages between pairs of ranks
/// (OperationKind::send_recv).
class ExchangeChunks {
 public:
  explicit ExchangeChunks(const BlockOperands& operands) noexcept
      : operands_(operands),
        length_(std::max<std::size_t>(1, operands.room / 2 / operands.element() / operands.blocks.sent.size())) {
    for (std::size_t peer = 0; peer < operands.blocks.sent.size(); ++peer) {
      const std::uint64_t longest = std::max(operands.blocks.sent[peer].count, operands.blocks.received[peer].count);
      chunks_ = std::max<std::size_t>(chunks_, (longest + length_ - 1) / length_);
    }
  }

  std::size_t size() const noexcept { return chunks_; }

  /// @param slot host memory of the chunk
  ChunkCopies operator()(std::size_t index, std::byte* slot) const {
    const BlockExchange& blocks = operands_.blocks;
    ChunkCopies made;
    made.input = slot;
    made.output = slot + operands_.room / 2;
    detail::PackedPieces sent(made.input, operands_.element(), made.blocks_to_host);
    detail::PackedPieces received(made.output, operands_.element(), made.blocks_to_device);
    BlockExchange packed{index == 0 ? blocks.kind : OperationKind::send_recv, blocks.root, blocks.count, {}, {}};
    for (std::size_t peer = 0; peer < blocks.sent.size(); ++peer) {
      const bool stays = static_cast<int>(peer) == operands_.rank && is_in_place(peer);
      packed.sent.push_back(stays ? BlockRange{} : sent.add(operands_.input.data, piece(blocks.sent[peer], index)));
      packed.received.push_back(stays ? BlockRange{}
                                      : received.add(operands_.output.data, piece(blocks.received[peer], index)));
    }
    made.input_count = sent.elements();
    made.output_count = received.elements();
    made.blocks = std::make_unique<const BlockExchange>(std::move(packed));
    return made;
  }

 private:
  BlockRange piece(const BlockRange& block, std::size_t index) const noexcept {
    const std::uint64_t begin = std::min<std::uint64_t>(block.count, index * length_);
    return {block.offset + begin, std::min<std::uint64_t>(length_, block.count - begin)};
  }
  bool is_in_place(std::size_t own) const noexcept {
    return operands_.input.data + operands_.blocks.sent[own].offset * operands_.element() ==
           operands_.output.data + operands_.blocks.received[own].offset * operands_.element();
  }

  BlockOperands operands_;
  std::size_t length_;
  std::size_t chunks_ = 1;
};

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
    made.input = slot;
    made.output = slot + operands_.room / 2;
    detail::PackedPieces sent(made.input, operands_.element(), made.blocks_to_host);
    detail::PackedPieces received(made.output, operands_.element(), made.blocks_to_device);
    BlockExchange packed{blocks.kind, blocks.root, blocks.count, {}, {}};
    for (std::size_t rank = 0; rank < blocks.sent.size(); ++rank) {
      const BlockRange piece = pieces_.piece(rank, index);
      packed.sent.push_back(sent.add(operands_.input.data, {blocks.sent[rank].offset + piece.offset, piece.count}));
    }
    const BlockRange own = blocks.connects(operands_.rank, operands_.rank) ? pieces_.piece(self, index) : BlockRange{};
    packed.received.assign(blocks.sent.size(), received.add(operands_.output.data, own));
    made.input_count = sent.elements();
    made.output_count = received.elements();
    made.blocks = std::make_unique<const BlockExchange>(std::move(packed));
    return made;
  }

 private:
  BlockOperands operands_;
  BlockPieces pieces_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
