#pragma once
/// @file
/// The three ways of a broadcast in shared memory; bytes, whatever the element type.

#include <algorithm>
#include <cstddef>

#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/kernels.hpp"
#include "dtrain/backend/shared_memory/placement.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The root shows its buffer, in place or chunk by chunk; the others copy it.
struct Broadcast {
  std::byte* buffer;
  Arena arena;

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t bytes = operation.count * size_bytes(operation.dtype);
    if (channel.size() == 1) {
      return;
    }
    if (bytes <= small_bytes) {
      small(channel, operation, bytes);
    } else {
      large(channel, operation, bytes);
    }
  }

 private:
  /// One meeting.
  void small(Channel& channel, const Operation& operation, std::size_t bytes) const noexcept {
    const bool is_root = channel.rank() == operation.root;
    if (is_root) {
      copy_bytes(channel.small_of(operation.root), buffer, bytes);
    }
    if (channel.meet_and_compare() && !is_root) {
      copy_bytes(buffer, channel.small_of(operation.root), bytes);
    }
  }

  void large(Channel& channel, const Operation& operation, std::size_t bytes) const noexcept {
    const bool is_root = channel.rank() == operation.root;
    if (is_root && operation.allocation == 0) {
      copy_in(channel, 0, bytes);
    }
    if (!channel.meet_and_compare()) {
      return;
    }
    const Operation& of_root = channel.operation_of(operation.root);
    if (all_in_one_arena(channel)) {
      if (!is_root) {
        copy_directly(channel, arena.buffer(operation.root, of_root), bytes);
      }
      channel.meet();
      return;
    }
    if (of_root.allocation != 0) {  // it could not know before the meeting that others are staged
      if (is_root) {
        copy_in(channel, 0, bytes);
      }
      if (!channel.meet()) {
        return;
      }
    }
    staged(channel, operation.root, bytes);
  }

  void copy_directly(const Channel& channel, const std::byte* from, std::size_t bytes) const noexcept {
    for (std::size_t begin = 0; begin < bytes && !channel.aborted(); begin += piece_bytes) {
      copy_bytes(buffer + begin, from + begin, std::min(piece_bytes, bytes - begin));
    }
  }

  /// While the others take one chunk the root shows the next; the last meeting lets it use the area again.
  void staged(Channel& channel, int root, std::size_t bytes) const noexcept {
    const std::size_t length = channel.control().chunk_bytes();
    for (std::size_t chunk = 0; chunk * length < bytes; ++chunk) {
      if (channel.rank() != root) {
        const std::size_t begin = chunk * length;
        copy_bytes(buffer + begin, channel.control().staged_input(root, chunk), std::min(length, bytes - begin));
      } else {
        copy_in(channel, chunk + 1, bytes);
      }
      if (!channel.meet()) {
        return;
      }
    }
  }

  /// Nothing where the buffer has no such chunk.
  void copy_in(const Channel& channel, std::size_t chunk, std::size_t bytes) const noexcept {
    const std::size_t length = channel.control().chunk_bytes();
    const std::size_t begin = chunk * length;
    if (begin < bytes) {
      copy_bytes(channel.control().staged_input(channel.rank(), chunk), buffer + begin,
                 std::min(length, bytes - begin));
    }
  }
};

/// One meeting.
struct Barrier {
  void operator()(Channel& channel, const Operation& /*operation*/) const noexcept { channel.meet_and_compare(); }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
