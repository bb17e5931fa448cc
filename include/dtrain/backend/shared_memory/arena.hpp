#pragma once
/// @file
/// Memory that every rank of a channel has mapped: one part for each rank.

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

  std::byte* part(int rank) const noexcept { return base + static_cast<std::size_t>(rank) * stride; }

  /// The buffer that `operation` says is at an offset of that rank's part.
  std::byte* buffer(int rank, const Operation& operation) const noexcept { return part(rank) + operation.offset; }
};

/// What a communicator remembers of its allocations, to recognise buffers in them. An allocation has the number of the
/// exchange that made it: the same on every rank, also after one that failed on some of them.
class ArenaTable {
 public:
  struct Place {
    std::uint64_t allocation = 0;  ///< 0: in none
    std::uint64_t offset = 0;
    Arena arena{};
  };

  void add(std::uint64_t number, const std::shared_ptr<Segment>& segment, Arena arena, std::byte* own_part,
           std::size_t bytes) {
    std::erase_if(entries_, [](const Entry& entry) { return entry.segment.expired(); });
    entries_.push_back({number, segment, arena, own_part, bytes});
  }

  /// Where `count` bytes at `data` lie. Blocking: no; allocates nothing.
  Place find(const std::byte* data, std::size_t count) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    for (const Entry& entry : entries_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(entry.own_part);
      if (address >= begin && address - begin <= entry.bytes && count <= entry.bytes - (address - begin) &&
          !entry.segment.expired()) {  // else the addresses may be somebody else's by now
        return {entry.number, address - begin, entry.arena};
      }
    }
    return {};
  }

 private:
  struct Entry {
    std::uint64_t number;
    std::weak_ptr<Segment> segment;
    Arena arena;
    std::byte* own_part;
    std::size_t bytes;
  };

  std::vector<Entry> entries_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
