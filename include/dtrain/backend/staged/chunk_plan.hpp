#pragma once
/// @file
/// ChunkPlan: how an operation on device memory is cut into the chunks that go through host memory in turn.

#include <algorithm>
#include <cstddef>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::staged {

/// Host memory that one chunk takes, where no allocation gives it its own: small enough that its copies, the reduction
/// and the copies of its neighbours go on at the same time, large enough that starting them costs little beside.
inline constexpr std::size_t slot_bytes = std::size_t{1} << 20;

/// Chunks under way at once in such memory.
inline constexpr std::size_t slots = 4;

/// Elements [begin, begin + count) of a buffer.
struct ElementRange {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Chunks of `length` elements, the last one shorter; a single empty one of nothing, since every rank takes part.
/// Depends on what is the same on every rank of an operation, and on nothing else: neither on memory nor on time.
class ChunkPlan {
 public:
  /// @param room bytes of host memory for a chunk  @param blocks that a chunk has of `element` bytes for each
  ChunkPlan(std::size_t count, std::size_t element, std::size_t room, std::size_t blocks = 1) noexcept
      : count_(count), length_(std::max<std::size_t>(1, room / (element * blocks))) {}

  std::size_t size() const noexcept { return std::max<std::size_t>(1, (count_ + length_ - 1) / length_); }

  /// The index-th; empty behind the end.
  ElementRange operator[](std::size_t index) const noexcept {
    const std::size_t begin = std::min(count_, index * length_);
    return {begin, std::min(length_, count_ - begin)};
  }

 private:
  std::size_t count_;
  std::size_t length_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged
