#pragma once
/// @file
/// Arena: an allocation of a channel, with a memory range for each rank, mapped by every rank.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/shared_memory/segment.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Borrows an allocation for one operation. Lifetime: the Allocation outlives enqueued work, as every buffer does.
struct Arena {
  std::byte* base = nullptr;
  std::size_t stride = 0;

  std::byte* memory_of(int rank) const noexcept { return base + static_cast<std::size_t>(rank) * stride; }

  /// The buffer at `operation.offset` in the memory of `rank`.
  std::byte* buffer(int rank, const Operation& operation) const noexcept { return memory_of(rank) + operation.offset; }
};

/// Table of a communicator's allocations, to find buffers in them. An allocation has the number of the setup that made
/// it: the same on every rank, also after a setup that failed on some ranks.
class ArenaTable {
 public:
  struct Location {
    std::uint64_t allocation = 0;  ///< 0: in none
    std::uint64_t offset = 0;
    Arena arena{};
  };

  void add(std::uint64_t number, const std::shared_ptr<Segment>& segment, Arena arena, std::byte* own_memory,
           std::size_t bytes) {
    std::erase_if(records_, [](const ArenaRecord& record) { return record.segment.expired(); });
    records_.push_back({number, segment, arena, own_memory, bytes});
  }

  /// Location of `count` bytes at `data`. Blocking: no; allocates nothing.
  Location find(const std::byte* data, std::size_t count) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    for (const ArenaRecord& record : records_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(record.own_memory);
      if (address >= begin && address - begin <= record.bytes && count <= record.bytes - (address - begin) &&
          !record.segment.expired()) {  // else other memory may have these addresses by now
        return {record.number, address - begin, record.arena};
      }
    }
    return {};
  }

 private:
  struct ArenaRecord {
    std::uint64_t number;
    std::weak_ptr<Segment> segment;
    Arena arena;
    std::byte* own_memory;
    std::size_t bytes;
  };

  std::vector<ArenaRecord> records_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
