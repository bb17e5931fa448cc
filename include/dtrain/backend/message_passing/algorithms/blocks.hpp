#pragma once
/// @file
/// Blocks: division of a buffer into one block for each rank, and of blocks into chunks.

#include <algorithm>
#include <cstddef>

#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// The largest value of Tuning::chunks_in_flight.
inline constexpr std::size_t max_chunks_in_flight = 8;

/// A range of elements; `offset` in bytes from the beginning of the whole buffer.
struct Extent {
  std::size_t offset;
  std::size_t bytes;
  std::size_t count;
};

/// Blocks have equal lengths, except the last ones, which may be shorter or empty. A block is processed in rounds of
/// `chunks_in_flight()` chunks, which are in flight together.
class Blocks {
 public:
  /// Divides `count` elements into `blocks` blocks.
  Blocks(std::size_t count, DType dtype, int blocks, const Tuning& tuning) noexcept
      : Blocks(count, dtype, blocks, tuning, dtype) {}

  /// @param carried widest type in which a chunk is sent
  Blocks(std::size_t count, DType dtype, int blocks, const Tuning& tuning, DType carried) noexcept
      : count_(count), element_(size_bytes(dtype)), carried_(size_bytes(carried)), in_flight_(tuning.chunks_in_flight) {
    const std::size_t number = static_cast<std::size_t>(blocks);
    block_ = (count + number - 1) / number;
    const std::size_t longest = std::max<std::size_t>(1, tuning.chunk_bytes / carried_);
    rounds_ = std::max<std::size_t>(1, (block_ + in_flight_ * longest - 1) / (in_flight_ * longest));
    const std::size_t chunks = rounds_ * in_flight_;
    const std::size_t line = std::max<std::size_t>(1, 64 / element_);
    chunk_ = std::max<std::size_t>(1, (block_ + chunks - 1) / chunks);
    chunk_ = (chunk_ + line - 1) / line * line;
  }

  std::size_t chunks_in_flight() const noexcept { return in_flight_; }
  std::size_t rounds() const noexcept { return rounds_; }
  /// Chunks of the longest block that have elements; at least one.
  std::size_t chunks() const noexcept { return std::max<std::size_t>(1, (block_ + chunk_ - 1) / chunk_); }
  std::size_t chunk_bytes() const noexcept { return chunk_ * carried_; }  ///< memory for one in its widest type
  std::size_t block_bytes() const noexcept { return block_ * element_; }

  Extent block(int block) const noexcept {
    const std::size_t begin = std::min(count_, static_cast<std::size_t>(block) * block_);
    return extent(begin, std::min(count_, begin + block_));
  }

  Extent chunk(int block, std::size_t round, std::size_t index) const noexcept {
    const std::size_t block_begin = std::min(count_, static_cast<std::size_t>(block) * block_);
    const std::size_t block_end = std::min(count_, block_begin + block_);
    const std::size_t begin = std::min(block_end, block_begin + (round * in_flight_ + index) * chunk_);
    return extent(begin, std::min(block_end, begin + chunk_));
  }

 private:
  Extent extent(std::size_t begin, std::size_t end) const noexcept {
    return {begin * element_, (end - begin) * element_, end - begin};
  }

  std::size_t count_;
  std::size_t element_;
  std::size_t carried_;
  std::size_t in_flight_;
  std::size_t rounds_;
  std::size_t block_;
  std::size_t chunk_;
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
