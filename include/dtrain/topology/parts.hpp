#pragma once
/// @file
/// How buffers are cut: into one part for each of several ranks, and these into pieces; and copied.

#include <algorithm>
#include <cstddef>

#include "dtrain/core/buffer_view.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// What goes over a link at a time, and is reduced while it lies in the cache.
inline constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// Elements of a buffer.
struct Part {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Part `index` of `parts` that differ by one element at most, the longer ones first.
constexpr Part part_of(std::size_t count, int parts, int index) noexcept {
  const auto number = static_cast<std::size_t>(parts);
  const auto at = static_cast<std::size_t>(index);
  return {at * (count / number) + std::min(at, count % number), count / number + (at < count % number ? 1 : 0)};
}

/// Piece `index` of a part that is cut into pieces of `length`; empty behind its end.
constexpr Part piece_of(Part part, std::size_t length, std::size_t index) noexcept {
  const std::size_t skipped = std::min(part.count, index * length);
  return {part.begin + skipped, std::min(length, part.count - skipped)};
}

/// How many pieces of `length` cover `count`.
constexpr std::size_t pieces_in(std::size_t count, std::size_t length) noexcept {
  return (count + length - 1) / length;
}

constexpr BufferView view_of(const BufferView& whole, Part part) noexcept {
  return {part.count == 0 ? whole.data : whole.data + part.begin * size_bytes(whole.dtype), part.count, whole.dtype,
          whole.device};
}
constexpr ConstBufferView view_of(const ConstBufferView& whole, Part part) noexcept {
  return {part.count == 0 ? whole.data : whole.data + part.begin * size_bytes(whole.dtype), part.count, whole.dtype,
          whole.device};
}

/// Nothing where both are the same memory.
inline void copy(const ConstBufferView& from, const BufferView& to) noexcept {
  if (from.data != to.data && to.count != 0) {
    kernels::copy_bytes(to.data, from.data, to.bytes());
  }
}

}  // namespace DTRAIN_NAMESPACE::topology
