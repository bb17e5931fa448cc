#pragma once
/// @file
/// What the ranks' descriptions say about where their buffers lie.

#include <cstddef>
#include <cstdint>

#include "dtrain/backend/shared_memory/channel.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Between pieces of this size long work looks whether it was aborted.
inline constexpr std::size_t piece_bytes = std::size_t{256} << 10;

/// Whether every rank's buffer of the present operation lies in the same allocation. The same answer on every rank.
/// Called after the operation's first meeting.
inline bool all_in_one_arena(const Channel& channel) noexcept {
  const std::uint64_t allocation = channel.operation_of(0).allocation;
  for (int rank = 1; rank < channel.size(); ++rank) {
    if (channel.operation_of(rank).allocation != allocation) {
      return false;
    }
  }
  return allocation != 0;
}

/// Whether any rank's does.
inline bool any_in_arena(const Channel& channel) noexcept {
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (channel.operation_of(rank).allocation != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
