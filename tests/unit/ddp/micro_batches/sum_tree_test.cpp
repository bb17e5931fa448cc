#include "dtrain/ddp/micro_batches/sum_tree.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace {

using dtrain::ddp::assign_micro_batches;
using dtrain::ddp::TreeMerge;
using dtrain::ddp::TreeNode;
using dtrain::ddp::TreePass;

/// A sum as text: "((0+1)+2)".
std::string sum_of(const TreeNode& node) {
  if (node.size() == 1) return std::to_string(node.begin);
  return "(" + sum_of({node.begin, node.middle()}) + "+" + sum_of({node.middle(), node.end}) + ")";
}

/// What the passes of a rank make: its nodes, in their order.
std::vector<std::string> sums_of(const std::vector<TreePass>& passes) {
  std::vector<std::string> stack(dtrain::ddp::deepest(passes));
  std::size_t depth = 0;
  std::string last;
  for (const TreePass& pass : passes) {
    CHECK(pass.depth == depth);
    const std::string leaf = std::to_string(pass.micro_batch);
    if (pass.is_last) {
      last = leaf;
      for (std::size_t merge = 0; merge < pass.merges; ++merge)
        last = "(" + stack.at(--depth) + "+" + last + ")";
      continue;
    }
    if (pass.adds) {
      stack.at(depth - 1) = "(" + stack.at(depth - 1) + "+" + leaf + ")";
    } else {
      stack.at(depth++) = leaf;
    }
    for (std::size_t merge = 0; merge < pass.merges; ++merge) {
      stack.at(depth - 2) = "(" + stack.at(depth - 2) + "+" + stack.at(depth - 1) + ")";
      --depth;
    }
  }
  stack.resize(depth);
  if (!passes.empty()) stack.push_back(last);
  return stack;
}

void check_assignment(std::size_t micro_batches, std::size_t ranks) {
  CAPTURE(micro_batches);
  CAPTURE(ranks);
  const auto nodes = assign_micro_batches(micro_batches, ranks);
  REQUIRE(nodes.size() == ranks);
  CHECK(nodes.front().front().begin == 0);
  std::vector<TreeNode> all;
  std::vector<std::string> sums;
  for (const std::vector<TreeNode>& of_rank : nodes) {
    std::size_t load = 0;
    for (const TreeNode& node : of_rank)
      load += node.size();
    CHECK((load == micro_batches / ranks || load == micro_batches / ranks + 1));
    const bool is_common = micro_batches == 8 || micro_batches == 12 || micro_batches == 16 || micro_batches == 24;
    if (micro_batches <= 64) CHECK(of_rank.size() <= (is_common ? 2U : micro_batches <= 24 ? 3U : 5U));
    const std::vector<TreePass> passes = dtrain::ddp::tree_passes(of_rank);
    REQUIRE(passes.size() == load);
    const std::vector<std::string> made = sums_of(passes);
    REQUIRE(made.size() == of_rank.size());
    for (std::size_t i = 0; i < made.size(); ++i)
      CHECK(made[i] == sum_of(of_rank[i]));
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i + 1 < all.size(); ++i)
    CHECK(all[i].end == all[i + 1].begin);
  CHECK(all.front().begin == 0);
  CHECK(all.back().end == micro_batches);
  for (const TreeNode& node : all)
    sums.push_back(sum_of(node));
  for (const TreeMerge& merge : dtrain::ddp::tree_merges(all))
    sums[merge.into] = "(" + sums[merge.into] + "+" + sums[merge.from] + ")";
  CHECK(sums.front() == sum_of({0, micro_batches}));
}

TEST_CASE("the ranks' nodes have each micro-batch once, evenly, and their sum is the tree's for any number of ranks") {
  for (std::size_t micro_batches = 1; micro_batches <= 64; ++micro_batches) {
    for (std::size_t ranks = 1; ranks <= micro_batches + 3; ++ranks)
      check_assignment(micro_batches, ranks);
  }
  for (const std::size_t ranks : {1U, 2U, 3U, 5U, 7U, 64U, 100U, 127U, 128U, 131U})
    check_assignment(128, ranks);
}

TEST_CASE("the tree of six micro-batches adds four and two") {
  CHECK(sum_of({0, 6}) == "(((0+1)+(2+3))+(4+5))");
  CHECK(sum_of({0, 3}) == "((0+1)+2)");
}

TEST_CASE("a rank keeps a partial sum for each doubling of its micro-batches, and none where it has one") {
  const auto most = [](std::size_t micro_batches, std::size_t ranks) {
    std::size_t deepest = 0;
    for (const auto& nodes : assign_micro_batches(micro_batches, ranks))
      deepest = std::max(deepest, dtrain::ddp::deepest(dtrain::ddp::tree_passes(nodes)));
    return deepest;
  };
  std::vector<std::size_t> of_eight;
  for (std::size_t ranks = 1; ranks <= 8; ++ranks)
    of_eight.push_back(most(8, ranks));
  CHECK(of_eight == std::vector<std::size_t>{3, 2, 1, 1, 1, 1, 1, 0});
  CHECK(most(16, 1) == 4);
  CHECK(most(16, 16) == 0);
}

}  // namespace
