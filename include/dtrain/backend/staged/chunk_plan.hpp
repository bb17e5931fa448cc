#pragma once
/// @file
/// ChunkPlan: the chunks in which an operation on device memory passes through host memory.

#include <algorithm>
#include <cstddef>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::staged {

/// Host memory of one chunk outside allocations. Small enough that its copies, its reduction and its neighbours' copies
/// overlap; large enough that starting them costs little in comparison.
inline constexpr std::size_t slot_bytes = std::size_t{1} << 20;

/// Number of such slots, and so of chunks in flight in them.
inline constexpr std::size_t slots = 4;

/// Elements [begin, begin + count) of a buffer.
struct ElementRange {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Chunks of `length` elements, the last one shorter. Without elements there is one empty chunk, since every rank takes
/// part. Depends only on values that are the same on every rank of an operation, neither on memory nor on time.
/// Example: 10 elements of 4 bytes in 16 bytes of room: [0, 4), [4, 8), [8, 10).
class ChunkPlan {
 public:
  /// @param room bytes of host memory per chunk  @param blocks the buffer's blocks; a chunk has elements of each
  ChunkPlan(std::size_t count, std::size_t element, std::size_t room, std::size_t blocks = 1) noexcept
      : count_(count), length_(std::max<std::size_t>(1, room / (element * blocks))) {}

  std::size_t size() const noexcept { return std::max<std::size_t>(1, (count_ + length_ - 1) / length_); }

  /// The index-th chunk; empty behind the end.
  ElementRange operator[](std::size_t index) const noexcept {
    const std::size_t begin = std::min(count_, index * length_);
    return {begin, std::min(length_, count_ - begin)};
  }

 private:
  std::size_t count_;
  std::size_t length_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged
