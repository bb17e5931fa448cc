#pragma once
/// @file
/// The tree in which the gradients of micro-batches are added: its nodes, their ranks, the order of the additions.
/// Pure.

#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The sum of the gradients of micro-batches begin, begin + 1, ..., end - 1. It is that of the micro-batch itself if
/// there is one; else the node [begin, middle) plus the node [middle, end), where middle - begin is the largest power
/// of two below end - begin. So the bits of a sum depend on the number of micro-batches alone.
struct TreeNode {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const noexcept { return end - begin; }
  std::size_t middle() const noexcept;
  /// Written out: nvcc 13.0 declares a defaulted one and does not define it.
  friend bool operator==(const TreeNode& a, const TreeNode& b) noexcept { return a.begin == b.begin && a.end == b.end; }
  friend bool operator<(const TreeNode& a, const TreeNode& b) noexcept {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  }
};

/// The nodes of each rank, in their order: together each micro-batch once. The ranks' numbers of micro-batches differ
/// by one at most, ranks beyond the micro-batches have none, and rank 0 has micro-batch 0. A rank has at most 3
/// nodes for 24 micro-batches or fewer, 2 for 8, 12, 16 and 24, and at most 5 for 64 or fewer.
std::vector<std::vector<TreeNode>> assign_micro_batches(std::size_t micro_batches, std::size_t ranks);

/// One pass of a rank: how its micro-batch's gradients go to a stack of partial sums. A node's sums are the digits of a
/// binary counter.
struct TreePass {
  std::size_t micro_batch = 0;
  std::size_t depth = 0;  ///< partial sums on the stack before the pass
  bool adds = false;      ///< the gradient is added to the topmost sum; else it is put on the stack
  std::size_t merges =
      0;                 ///< how many times the topmost sum is then added to the one below it, which is an earlier one
  bool is_last = false;  ///< the rank's last pass: its result, which is the rank's last node, is not on the stack
};

/// @param nodes of a rank. After the last pass the stack has the other nodes, in their order
std::vector<TreePass> tree_passes(std::span<const TreeNode> nodes);

/// The most sums on the stack.
std::size_t deepest(std::span<const TreePass> passes) noexcept;

/// Adds the sum `from` to the sum `into`, which is earlier: indices into a list of nodes.
struct TreeMerge {
  std::size_t into = 0;
  std::size_t from = 0;
};

/// The additions that make the sum of all micro-batches, in node 0, from the nodes of all ranks.
/// @param nodes sorted; together each micro-batch once
std::vector<TreeMerge> tree_merges(std::span<const TreeNode> nodes);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <bit>

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED std::size_t TreeNode::middle() const noexcept {
  return begin + std::bit_floor(size() - 1);
}

DTRAIN_DEFINED std::vector<std::vector<TreeNode>> assign_micro_batches(std::size_t micro_batches, std::size_t ranks) {
  std::vector<std::size_t> lacks(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    lacks[rank] = micro_batches / ranks + (rank < micro_batches % ranks ? 1 : 0);
  std::vector<TreeNode> free{{0, micro_batches}};
  std::vector<std::vector<TreeNode>> nodes(ranks);
  for (;;) {
    const auto most = std::max_element(lacks.begin(), lacks.end());  // the first of equal ones
    if (*most == 0) break;
    const auto fits = [&](const TreeNode& node) { return node.size() <= *most; };
    // The largest node that fits, of equal ones the first; the smallest that does not.
    const auto best = std::min_element(free.begin(), free.end(), [&](const TreeNode& a, const TreeNode& b) {
      if (fits(a) != fits(b)) return fits(a);
      return a.size() != b.size() ? (a.size() > b.size()) == fits(a) : a < b;
    });
    const auto large = std::min_element(free.begin(), free.end(), [&](const TreeNode& a, const TreeNode& b) {
      if (fits(a) != fits(b)) return fits(b);
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    if (!fits(*best) || (best->size() < std::bit_floor(*most) && !fits(*large))) {
      const TreeNode split = *large;
      *large = {split.begin, split.middle()};
      free.push_back({split.middle(), split.end});
    } else {
      nodes[static_cast<std::size_t>(most - lacks.begin())].push_back(*best);
      *most -= best->size();
      free.erase(best);
    }
  }
  for (std::vector<TreeNode>& each : nodes)
    std::sort(each.begin(), each.end());
  const auto first = std::find_if(nodes.begin(), nodes.end(), [](const std::vector<TreeNode>& each) {
    return !each.empty() && each.front().begin == 0;
  });
  std::swap(*first, nodes.front());
  return nodes;
}

DTRAIN_DEFINED std::vector<TreePass> tree_passes(std::span<const TreeNode> nodes) {
  std::vector<TreePass> passes;
  std::size_t depth = 0;
  for (const TreeNode& node : nodes) {
    const std::size_t below = depth;  // finished nodes
    for (std::size_t k = 0; k < node.size(); ++k) {
      TreePass pass{node.begin + k, depth};
      pass.is_last = node.end == nodes.back().end && k + 1 == node.size();
      const auto trailing_ones = static_cast<std::size_t>(std::countr_one(k));
      if (pass.is_last) {
        pass.merges = depth - below;
      } else {
        pass.adds = trailing_ones != 0;
        pass.merges = pass.adds ? trailing_ones - 1 : 0;
        depth += pass.adds ? 0 : 1;
        if (k + 1 == node.size()) pass.merges = depth - below - 1;
        depth -= pass.merges;
      }
      passes.push_back(pass);
    }
  }
  return passes;
}

DTRAIN_DEFINED std::size_t deepest(std::span<const TreePass> passes) noexcept {
  std::size_t most = 0;
  for (const TreePass& pass : passes)
    most = std::max(most, pass.depth + (pass.adds || pass.is_last ? 0 : 1));
  return most;
}

namespace detail {

/// Appends the additions that make `node` in its first part. @param at the node in `nodes` that begins with it
DTRAIN_DEFINED void add_merges(const TreeNode& node, std::span<const TreeNode> nodes, std::size_t at,
                               std::vector<TreeMerge>& merges) {
  if (nodes[at] == node) return;
  const TreeNode right{node.middle(), node.end};
  const auto found = std::lower_bound(nodes.begin(), nodes.end(), right.begin,
                                      [](const TreeNode& each, std::size_t begin) { return each.begin < begin; });
  const auto right_at = static_cast<std::size_t>(found - nodes.begin());
  add_merges({node.begin, node.middle()}, nodes, at, merges);
  add_merges(right, nodes, right_at, merges);
  merges.push_back({at, right_at});
}

}  // namespace detail

DTRAIN_DEFINED std::vector<TreeMerge> tree_merges(std::span<const TreeNode> nodes) {
  std::vector<TreeMerge> merges;
  detail::add_merges({0, nodes.back().end}, nodes, 0, merges);
  return merges;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
