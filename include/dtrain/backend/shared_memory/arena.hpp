#pragma once
/// @file
/// Arena: memory that SharedMemory's Communicator allocated, with a range for each rank, mapped by every rank;
/// collectives/ work there in place. ArenaTable: a communicator's arenas, to find the one that a buffer is in.

#include <cstddef>
#include <cstdint>

#include "dtrain/backend/allocation_table.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Borrows an allocation for one operation. Lifetime: the Allocation outlives enqueued work, as every buffer does.
struct Arena {
  std::byte* base = nullptr;
  std::size_t stride = 0;

  std::byte* memory_of(int rank) const noexcept { return base + static_cast<std::size_t>(rank) * stride; }

  /// The buffer at `operation.offset` in the memory of `rank`.
  std::byte* buffer(int rank, const Operation& operation) const noexcept { return memory_of(rank) + operation.offset; }
};

/// An arena with the number of its set-up, which counts the channel's set-ups, failed ones too: the same on every rank.
/// 0: there is no arena.
struct NumberedArena {
  std::uint64_t number = 0;
  Arena arena{};
};
using ArenaTable = AllocationTable<NumberedArena>;

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
