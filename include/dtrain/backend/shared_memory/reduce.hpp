#pragma once
/// @file
/// The reduction of many ranks' elements, in rank order.

#include <algorithm>
#include <cstddef>
#include <span>

#include "dtrain/backend/shared_memory/kernels.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Writes `sources[0][i] op sources[1][i] op ...`, evaluated from the left, to every target. Each path of the backend
/// ends here, so an element's bits do not depend on the path, the slice or the chunk it was in. A target may be one of
/// the sources (the same elements of it), else they are disjoint.
inline void reduce(const Kernels& kernels, std::size_t element_bytes, std::span<const std::byte* const> sources,
                   std::span<std::byte* const> targets, std::size_t count) noexcept {
  // The partial result stays in the first-level cache while one block after another comes from memory.
  constexpr std::size_t block_bytes = 4096;
  alignas(64) std::byte partial[block_bytes];
  const std::size_t bytes = count * element_bytes;
  for (std::size_t offset = 0; offset < bytes; offset += block_bytes) {
    const std::size_t part = std::min(block_bytes, bytes - offset);
    const std::size_t elements = part / element_bytes;
    if (sources.size() == 1) {
      copy_bytes(partial, sources[0] + offset, part);
    } else {
      kernels.combine(partial, sources[0] + offset, sources[1] + offset, elements);
    }
    for (std::size_t rank = 2; rank < sources.size(); ++rank) {
      kernels.combine(partial, partial, sources[rank] + offset, elements);
    }
    if (kernels.scale != nullptr) {
      kernels.scale(partial, elements, static_cast<int>(sources.size()));
    }
    for (std::byte* target : targets) {
      copy_bytes(target + offset, partial, part);
    }
  }
}

/// The part of `count` elements that one rank reduces: whole cache lines, the last ranks' may be empty.
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const noexcept { return end - begin; }
};

/// Elements of the longest slice of `count` elements among `ranks`.
constexpr std::size_t slice_length(std::size_t count, int ranks) noexcept {
  constexpr std::size_t line = 64;  // elements: a whole number of cache lines of every element type
  const std::size_t share = (count + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  return (share + line - 1) / line * line;
}

constexpr Slice slice_of(std::size_t count, int ranks, int rank) noexcept {
  const std::size_t length = slice_length(count, ranks);
  const std::size_t begin = std::min(count, length * static_cast<std::size_t>(rank));
  return {begin, std::min(count, begin + length)};
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
