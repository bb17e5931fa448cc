#pragma once
/// @file
/// Arena: an allocation of a channel, with a memory range for each rank, mapped by every rank;
/// shared_memory::Allocation: this rank's memory in it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "dtrain/backend/allocation_table.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

class Segment;

/// An owner, which may outlive the communicator. In-place collectives on this memory copy nothing.
class Allocation {
 public:
  Allocation() noexcept = default;
  Allocation(std::shared_ptr<Segment> segment, std::byte* data, std::size_t bytes) noexcept
      : segment_(std::move(segment)), data_(data), bytes_(bytes) {}
  Allocation(Allocation&& other) noexcept
      : segment_(std::move(other.segment_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Allocation& operator=(Allocation&& other) noexcept {
    segment_ = std::move(other.segment_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() = default;

  /// This rank's memory, aligned to a page at least.
  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<Segment> segment_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

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
