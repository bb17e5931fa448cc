#pragma once
/// @file
/// All-gather in shared memory: through slots, in place, or copied in chunks; copies bytes of any element type.

#include <cstddef>

#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/chunked_collective.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Every rank publishes its block, in place or chunk by chunk, and copies the others'. Bytes moved for S bytes on n
/// ranks (a block is S/n): in an arena 2nS, copied 2(n+1)S.
struct AllGather {
  const std::byte* input;  ///< may be this rank's block of the output
  std::byte* output;
  Arena arena;  ///< of the input, if any

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t block = operation.count * size_bytes(operation.dtype);
    std::byte* const own = output + static_cast<std::size_t>(channel.rank()) * block;
    if (own != input) {
      kernels::copy_bytes(own, input, block);
    }
    if (channel.size() > 1) {
      block <= slot_bytes ? small(channel, block) : large(channel, operation, block);
    }
  }

 private:
  /// Through slots, with one barrier.
  void small(Channel& channel, std::size_t block) const noexcept {
    kernels::copy_bytes(channel.small_input_of(channel.rank(), block), input, block);
    if (channel.arrive_and_compare()) {
      for_each_peer(channel, [&](int peer) {
        kernels::copy_bytes(output + static_cast<std::size_t>(peer) * block, channel.small_input_of(peer, block),
                            block);
      });
    }
  }

  void large(Channel& channel, const Operation& operation, std::size_t block) const noexcept {
    const ChunkRange chunks(block, channel.control().chunk_bytes());
    run_chunked(
        channel, operation, [&] { return chunks.number(); }, block,
        [&] {
          for_each_peer(channel, [&](int peer) {
            const std::byte* from = arena.buffer(peer, channel.operation_of(peer));
            std::byte* to = output + static_cast<std::size_t>(peer) * block;
            in_abortable_steps(channel, 0, block, 1, [&](std::size_t begin, std::size_t length) {
              kernels::copy_bytes(to + begin, from + begin, length);
            });
          });
        },
        [&](std::size_t chunk) {
          channel.copy_path().copy(channel.control().chunk_input(channel.rank(), chunk), input + chunks.begin(chunk),
                                   chunks.length(chunk));
        },
        [&](std::size_t chunk) {
          for_each_peer(channel, [&](int peer) {
            kernels::copy_bytes(output + static_cast<std::size_t>(peer) * block + chunks.begin(chunk),
                                channel.control().chunk_input(peer, chunk), chunks.length(chunk));
          });
        });
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
