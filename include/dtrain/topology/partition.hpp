#pragma once
/// @file
/// Blocks of a buffer, one for each rank, and chunks of a block; views and copies of them. hierarchical/collectives.hpp
/// and flat_over.hpp of this folder divide their buffers by them.

#include <algorithm>
#include <cstddef>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// A range of a buffer's elements.
struct BufferRange {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Block `index` of `blocks` blocks, whose lengths differ by at most one element; the longer blocks come first.
/// Example: 10 elements in 4 blocks: 3, 3, 2, 2.
constexpr BufferRange block_of(std::size_t count, int blocks, int index) noexcept {
  const auto number = static_cast<std::size_t>(blocks);
  const auto at = static_cast<std::size_t>(index);
  return {at * (count / number) + std::min(at, count % number), count / number + (at < count % number ? 1 : 0)};
}

/// Chunk `index` of a range that is divided into chunks of `length` elements; empty beyond the end of the range.
constexpr BufferRange chunk_of(BufferRange range, std::size_t length, std::size_t index) noexcept {
  const std::size_t skipped = std::min(range.count, index * length);
  return {range.begin + skipped, std::min(length, range.count - skipped)};
}

/// Number of chunks of `length` elements that cover `count` elements.
constexpr std::size_t chunks_in(std::size_t count, std::size_t length) noexcept {
  return (count + length - 1) / length;
}

/// @tparam View BufferView or ConstBufferView
template <class View>
constexpr View view_of(const View& whole, BufferRange range) noexcept {
  return {range.count == 0 ? whole.data : whole.data + range.begin * size_bytes(whole.dtype), range.count, whole.dtype,
          whole.device};
}

/// Does nothing if both are the same memory.
inline void copy(const ConstBufferView& from, const BufferView& to) noexcept {
  if (from.data != to.data && to.count != 0) {
    kernels::copy_bytes(to.data, from.data, to.bytes());
  }
}

}  // namespace DTRAIN_NAMESPACE::topology
