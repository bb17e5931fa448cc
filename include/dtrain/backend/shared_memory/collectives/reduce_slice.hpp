#pragma once
/// @file
/// Partition of a reduction into one slice for each rank.

#include <algorithm>
#include <cstddef>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The range of `count` elements that one rank reduces: whole cache lines; those of the last ranks may be empty.
struct ReduceSlice {
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

constexpr ReduceSlice slice_of(std::size_t count, int ranks, int rank) noexcept {
  const std::size_t length = slice_length(count, ranks);
  const std::size_t begin = std::min(count, length * static_cast<std::size_t>(rank));
  return {begin, std::min(count, begin + length)};
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
