#pragma once
/// @file
/// Broadcast in shared memory: through slots, in place, or copied in chunks; copies bytes of any element type.

#include <cstddef>

#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/chunked_collective.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The root publishes its buffer, in place or chunk by chunk; the others copy it.
struct SegmentBroadcast {
  std::byte* buffer;
  Arena arena;

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t bytes = operation.count * size_bytes(operation.dtype);
    if (channel.size() == 1) {
      return;
    }
    if (bytes <= slot_bytes) {
      small(channel, operation, bytes);
    } else {
      large(channel, operation, bytes);
    }
  }

 private:
  /// One barrier.
  void small(Channel& channel, const Operation& operation, std::size_t bytes) const noexcept {
    const bool is_root = channel.rank() == operation.root;
    if (is_root) {
      kernels::copy_bytes(channel.small_input_of(operation.root, bytes), buffer, bytes);
    }
    if (channel.arrive_and_compare() && !is_root) {
      kernels::copy_bytes(buffer, channel.small_input_of(operation.root, bytes), bytes);
    }
  }

  void large(Channel& channel, const Operation& operation, std::size_t bytes) const noexcept {
    const int root = operation.root;
    const bool is_root = channel.rank() == root;
    const ChunkRange chunks(bytes, channel.control().chunk_bytes());
    run_chunked(
        channel, operation, [&] { return chunks.number(); }, bytes,
        [&] {
          const std::byte* from = arena.buffer(root, channel.operation_of(root));
          if (!is_root) {
            in_abortable_steps(channel, 0, bytes, 1, [&](std::size_t begin, std::size_t length) {
              kernels::copy_bytes(buffer + begin, from + begin, length);
            });
          }
        },
        [&](std::size_t chunk) {
          if (is_root) {
            channel.copy_path().copy(channel.control().chunk_input(root, chunk), buffer + chunks.begin(chunk),
                                     chunks.length(chunk));
          }
        },
        [&](std::size_t chunk) {
          if (!is_root) {
            kernels::copy_bytes(buffer + chunks.begin(chunk), channel.control().chunk_input(root, chunk),
                                chunks.length(chunk));
          }
        });
  }
};

/// One barrier.
struct SegmentBarrier {
  void operator()(Channel& channel, const Operation& /*operation*/) const noexcept { channel.arrive_and_compare(); }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
