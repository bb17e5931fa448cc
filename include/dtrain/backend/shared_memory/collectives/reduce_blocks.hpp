#pragma once
/// @file
/// Reduction of blocks of any lengths in shared memory: in place, or staged, with the bits of an all-reduce.

#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/exchange/block_pieces.hpp"
#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/chunked_collective.hpp"
#include "dtrain/backend/shared_memory/collectives/published_blocks.hpp"
#include "dtrain/backend/shared_memory/collectives/rank_addresses.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// As ReduceScatter, with a piece of every block in a chunk.
struct ReduceBlocks {
  const std::byte* input;
  std::byte* output;            ///< may be this rank's block of the input
  Arena arena;                  ///< of the input, if any
  const BlockExchange* blocks;  ///< owned, until release()

  void release() const noexcept { delete blocks; }

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t element = size_bytes(operation.dtype);
    const BlockRange& own = blocks->sent[static_cast<std::size_t>(channel.rank())];
    const std::byte* const own_input = input + own.offset * element;
    if (channel.size() > 1) {
      reduce(channel, operation, element, own_input);
    } else if (own_input != output && own.count != 0) {
      kernels::copy_bytes(output, own_input, own.count * element);
    }
  }

 private:
  void reduce(Channel& channel, const Operation& operation, std::size_t element,
              const std::byte* own_input) const noexcept {
    const PublishedBlocks published(channel, *blocks);
    const auto self = static_cast<std::size_t>(channel.rank());
    const auto ranks = static_cast<std::size_t>(channel.size());
    const kernels::Reduction reduction = kernels::Reduction::of(operation.dtype, operation.op, channel.isa());
    const BlockPieces pieces(*blocks, channel.control().chunk_bytes() / element);
    const auto chunk_offset = [&](std::size_t rank, std::size_t chunk) {
      std::uint64_t elements = 0;
      for (std::size_t before = 0; before < rank; ++before) {
        elements += pieces.piece(before, chunk).count;
      }
      return elements * element;
    };
    const auto publish = [&](std::size_t chunk) {
      std::byte* to = channel.control().chunk_input(channel.rank(), chunk);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const BlockRange piece = pieces.piece(rank, chunk);
        const std::size_t bytes = piece.count * element;
        if (rank != self && bytes != 0) {
          const std::uint64_t begin = blocks->sent[rank].offset + piece.offset;
          channel.copy_path().copy(to, input + begin * element, bytes);
        }
        to += bytes;
      }
    };
    const auto read = [&](std::size_t chunk) {
      const BlockRange piece = pieces.piece(self, chunk);
      const std::size_t begin = piece.offset * element;
      const std::size_t offset = chunk_offset(self, chunk);
      const Sources sources(channel.size(), [&](int rank) -> const std::byte* {
        return rank == channel.rank() ? own_input + begin : channel.control().chunk_input(rank, chunk) + offset;
      });
      std::byte* const target = output + begin;
      reduction(sources, std::span(&target, 1), piece.count);
    };
    const auto reduce_in_place = [&] {
      in_abortable_steps(channel, 0, blocks->sent[self].count, element, [&](std::size_t begin, std::size_t length) {
        const Sources sources(channel.size(), [&](int rank) {
          const std::uint64_t first = published.sent(rank, channel.rank()).offset + begin;
          return arena.buffer(rank, channel.operation_of(rank)) + first * element;
        });
        std::byte* const target = output + begin * element;
        reduction(sources, std::span(&target, 1), length);
      });
    };
    const auto count_chunks = [&]() noexcept -> std::size_t {
      return published.compare(operation) && pieces.elements() != 0 ? pieces.chunks() : 0;
    };
    run_chunked(channel, operation, count_chunks, pieces.elements() * element, reduce_in_place, publish, read);
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
