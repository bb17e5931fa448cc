#pragma once
/// @file
/// All-gather, read_blocks, broadcast and barrier in shared memory: through slots, in place, or copied in chunks.

#include <cstddef>

#include "dtrain/backend/operations.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/chunked_collective.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Publishes this rank's block, in place or chunk by chunk, and gets those of other ranks: `for_each_source(visit)`
/// calls `visit(peer)` for each that this rank reads, and `read(peer, begin, from, bytes)` gets its block part by part.
/// Small blocks pass through slots, with one barrier.
/// @param input this rank's block; null: it publishes none @param arena of the input, if any
template <class ForEachSource, class Read>
void publish_and_read(Channel& channel, const Operation& operation, const std::byte* input, const Arena& arena,
                      ForEachSource for_each_source, Read read) noexcept {
  const std::size_t block = operation.count * size_bytes(operation.dtype);
  if (channel.size() == 1) return;
  if (block <= slot_bytes) {
    if (input != nullptr) {
      kernels::copy_bytes(channel.small_input_of(channel.rank(), block), input, block);
    }
    if (channel.arrive_and_compare()) {
      for_each_source([&](int peer) { read(peer, std::size_t{0}, channel.small_input_of(peer, block), block); });
    }
    return;
  }
  const ChunkRange chunks(block, channel.control().chunk_bytes());
  run_chunked(
      channel, operation, [&] { return chunks.number(); }, block,
      [&] {
        for_each_source([&](int peer) {
          const std::byte* from = arena.buffer(peer, channel.operation_of(peer));
          in_abortable_steps(channel, 0, block, 1,
                             [&](std::size_t begin, std::size_t length) { read(peer, begin, from + begin, length); });
        });
      },
      [&](std::size_t chunk) {
        if (input != nullptr) {
          channel.copy_path().copy(channel.control().chunk_input(channel.rank(), chunk), input + chunks.begin(chunk),
                                   chunks.length(chunk));
        }
      },
      [&](std::size_t chunk) {
        for_each_source([&](int peer) {
          read(peer, chunks.begin(chunk), channel.control().chunk_input(peer, chunk), chunks.length(chunk));
        });
      });
}

/// Every rank publishes its block, and reads those of all others.
template <class Read>
void read_peer_blocks(Channel& channel, const Operation& operation, const std::byte* input, const Arena& arena,
                      Read read) noexcept {
  publish_and_read(
      channel, operation, input, arena, [&](auto visit) { for_each_peer(channel, visit); }, read);
}

/// Bytes moved for S bytes on n ranks (a block is S/n): in an arena 2nS, copied 2(n+1)S.
struct SegmentAllGather {
  const std::byte* input;  ///< may be this rank's block of the output
  std::byte* output;
  Arena arena;  ///< the input's arena, if any

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t block = operation.count * size_bytes(operation.dtype);
    std::byte* const own = output + static_cast<std::size_t>(channel.rank()) * block;
    if (own != input) {
      kernels::copy_bytes(own, input, block);
    }
    read_peer_blocks(channel, operation, input, arena,
                     [&](int peer, std::size_t begin, const std::byte* from, std::size_t bytes) {
                       kernels::copy_bytes(output + static_cast<std::size_t>(peer) * block + begin, from, bytes);
                     });
  }
};

/// An all-gather whose reader gets the peers' blocks.
struct SegmentReadBlocks {
  const std::byte* input;
  BlockReader reader;
  Arena arena;  ///< the input's arena, if any

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    read_peer_blocks(channel, operation, input, arena,
                     [&](int peer, std::size_t begin, const std::byte* from, std::size_t bytes) {
                       reader.read(reader, peer, begin, from, bytes);
                     });
  }
};

/// The root publishes its buffer; the others copy it.
struct SegmentBroadcast {
  std::byte* buffer;
  Arena arena;

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const bool is_root = channel.rank() == operation.root;
    publish_and_read(
        channel, operation, is_root ? buffer : nullptr, arena,
        [&](auto visit) {
          if (!is_root) visit(operation.root);
        },
        [&](int /*peer*/, std::size_t begin, const std::byte* from, std::size_t bytes) {
          kernels::copy_bytes(buffer + begin, from, bytes);
        });
  }
};

struct SegmentBarrier {
  void operator()(Channel& channel, const Operation& /*operation*/) const noexcept { channel.arrive_and_compare(); }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
