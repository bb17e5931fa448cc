#pragma once
/// @file
/// BlockPieces: division of a reduction of blocks into chunks with a piece of every block.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dtrain/backend/exchange/block_exchange.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Each chunk has the same share of every block, so that all ranks reduce at once. Equal on every rank, since the
/// blocks of a reduction are. Lifetime: the blocks outlive it.
class BlockPieces {
 public:
  /// @param room elements that fit in a chunk; more than the number of blocks
  BlockPieces(const BlockExchange& blocks, std::uint64_t room) noexcept : blocks_(blocks) {
    for (const BlockRange& block : blocks.sent) {
      elements_ += block.count;
    }
    const std::uint64_t most = room - blocks.sent.size();  // each piece may be rounded up
    chunks_ = std::max<std::uint64_t>(1, (elements_ + most - 1) / most);
  }

  std::uint64_t elements() const noexcept { return elements_; }  ///< of all blocks
  std::uint64_t chunks() const noexcept { return chunks_; }      ///< at least 1

  /// The piece of the block of `rank`; `offset` from the beginning of the block.
  BlockRange piece(std::size_t rank, std::uint64_t chunk) const noexcept {
    const std::uint64_t count = blocks_.sent[rank].count;
    const auto begin = [&](std::uint64_t of) { return count / chunks_ * of + count % chunks_ * of / chunks_; };
    return {begin(chunk), begin(chunk + 1) - begin(chunk)};
  }

 private:
  const BlockExchange& blocks_;
  std::uint64_t elements_ = 0;
  std::uint64_t chunks_ = 1;
};

}  // namespace DTRAIN_NAMESPACE::backend
