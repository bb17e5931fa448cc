#pragma once
/// @file
/// Rearrangement: sorts blocks of memory in place, through a small scratch buffer.

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A block of memory, directly after the block before it.
struct Block {
  std::size_t bytes = 0;
  std::size_t target = 0;  ///< wanted begin; only the order of the targets is used
};

namespace detail {

/// A merge sort that rotates instead of copying to a second array. Each byte of n blocks is moved about log(n) times if
/// they are in disorder, and never if they are in order.
template <class Copy>
class Rearrangement {
 public:
  Rearrangement(std::span<Block> blocks, std::span<std::byte> scratch, Copy copy)
      : blocks_(blocks), scratch_(scratch), copy_(std::move(copy)) {}

  void run(std::byte* base) { sort(0, blocks_.size(), base); }

 private:
  std::size_t bytes_of(std::size_t first, std::size_t last) const noexcept {
    std::size_t bytes = 0;
    for (; first < last; ++first) {
      bytes += blocks_[first].bytes;
    }
    return bytes;
  }

  /// Sorts blocks [first, last), which begin at `at`.
  void sort(std::size_t first, std::size_t last, std::byte* at) {
    if (last - first > 1) {
      const std::size_t middle = first + (last - first) / 2;
      sort(first, middle, at);
      sort(middle, last, at + bytes_of(first, middle));
      merge(first, middle, last, at);
    }
  }

  /// Merges [first, middle) and [middle, last), each in order: splits the longer run in the middle and the other at the
  /// same target, rotates the inner parts, and merges both halves.
  void merge(std::size_t first, std::size_t middle, std::size_t last, std::byte* at) {
    if (first == middle || middle == last || blocks_[middle - 1].target < blocks_[middle].target) {
      return;
    }
    const auto before = [](const Block& one, const Block& other) { return one.target < other.target; };
    const auto begin = blocks_.begin();
    const auto iterator = [begin](std::size_t index) { return begin + static_cast<std::ptrdiff_t>(index); };
    std::size_t left = first + (middle - first) / 2;
    std::size_t right = middle + (last - middle) / 2;
    if (middle - first >= last - middle) {
      right =
          static_cast<std::size_t>(std::lower_bound(iterator(middle), iterator(last), blocks_[left], before) - begin);
    } else {
      left =
          static_cast<std::size_t>(std::upper_bound(iterator(first), iterator(middle), blocks_[right], before) - begin);
    }
    rotate(at + bytes_of(first, left), bytes_of(left, middle), bytes_of(middle, right));
    std::rotate(iterator(left), iterator(middle), iterator(right));
    const std::size_t boundary = left + (right - middle);
    merge(first, left, boundary, at);
    merge(boundary, right, last, at + bytes_of(first, boundary));
  }

  /// Swaps the `left` bytes at `at` with the `right` bytes after them. Each pass exchanges the shorter side with as
  /// much of the longer one, which puts the shorter side in its final position.
  /// Example, left 2 and right 4: ab1234 becomes 3412ab, and ab is final. Then left 2 and right 2: 1234ab.
  void rotate(std::byte* at, std::size_t left, std::size_t right) {
    while (left != 0 && right != 0) {
      const std::size_t shorter = std::min(left, right);
      exchange(at, left <= right ? at + right : at + left, shorter);
      if (left <= right) {
        right -= shorter;
      } else {
        at += shorter;
        left -= shorter;
      }
    }
  }

  void exchange(std::byte* one, std::byte* other, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t chunk = std::min(bytes - done, scratch_.size());
      copy_(scratch_.data(), one + done, chunk);
      copy_(one + done, other + done, chunk);
      copy_(other + done, scratch_.data(), chunk);
      done += chunk;
    }
  }

  std::span<Block> blocks_;
  std::span<std::byte> scratch_;
  Copy copy_;
};

}  // namespace detail

/// Sorts `blocks`, which follow each other from `base` on, by their targets.
/// @param scratch buffer for exchanging two ranges; any size but 0
/// @param copy `copy(to, from, bytes)` copies between ranges that do not overlap, blocking
template <class Copy>
void rearrange(std::byte* base, std::span<Block> blocks, std::span<std::byte> scratch, Copy copy) {
  detail::Rearrangement<Copy>(blocks, scratch, std::move(copy)).run(base);
}

}  // namespace DTRAIN_NAMESPACE::ddp
