#pragma once
/// @file
/// Memory that every rank of a channel has mapped: a range for each rank.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/shared_memory/segment.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Borrows an allocation, for one operation. Lifetime: the Allocation, as for every buffer that is enqueued.
struct Arena {
  std::byte* base = nullptr;
  std::size_t stride = 0;

  std::byte* memory_of(int rank) const noexcept { return base + static_cast<std::size_t>(rank) * stride; }

  /// The buffer that `operation` says is at an offset in that rank's memory.
  std::byte* buffer(int rank, const Operation& operation) const noexcept { return memory_of(rank) + operation.offset; }
};

/// What a communicator remembers of its allocations, to recognise buffers in them. An allocation has the number of the
/// exchange that made it: the same on every rank, also after one that failed on some of them.
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

  /// Where `count` bytes at `data` lie. Blocking: no; allocates nothing.
  Location find(const std::byte* data, std::size_t count) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    for (const ArenaRecord& record : records_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(record.own_memory);
      if (address >= begin && address - begin <= record.bytes && count <= record.bytes - (address - begin) &&
          !record.segment.expired()) {  // else the addresses may be somebody else's by now
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
