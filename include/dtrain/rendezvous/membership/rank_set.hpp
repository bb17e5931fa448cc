#pragma once
/// @file
/// RankSet: compact set of ranks, as ascending ranges of equal steps.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The usual subsets of a job (a node's ranks, every eighth rank) need one range each.
struct RankSet {
  /// first, first + step, and so on: `more` ranks after the first.
  struct RankRange {
    int first = 0;
    int step = 1;
    int more = 0;

    int last() const noexcept { return first + step * more; }
    bool contains(int rank) const noexcept { return rank >= first && rank <= last() && (rank - first) % step == 0; }

    friend bool operator==(const RankRange&, const RankRange&) = default;
  };

  std::vector<RankRange> ranges;  ///< each begins after the end of the one before

  /// @param ranks in any order, each once. Example: 0, 8, 16, 17 become the ranges {0, 8, 2} and {17, 1, 0}.
  static RankSet of(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    RankSet set;
    for (const int rank : ranks) {
      if (!set.ranges.empty()) {
        RankRange& range = set.ranges.back();
        if (range.more == 0) {
          range.step = rank - range.first;
        }
        if (rank == range.last() + range.step) {
          ++range.more;
          continue;
        }
      }
      set.ranges.push_back({rank, 1, 0});
    }
    return set;
  }

  static RankSet first_of(int count) { return {{{0, 1, count - 1}}}; }

  std::size_t size() const noexcept {
    std::size_t sum = 0;
    for (const RankRange& range : ranges) {
      sum += static_cast<std::size_t>(range.more) + 1;
    }
    return sum;
  }

  bool contains(int rank) const noexcept {
    return std::any_of(ranges.begin(), ranges.end(), [rank](const RankRange& range) { return range.contains(rank); });
  }

  /// The largest rank; -1 if there is none.
  int last() const noexcept { return ranges.empty() ? -1 : ranges.back().last(); }

  /// All ranks, ascending.
  std::vector<int> ranks() const {
    std::vector<int> all;
    for (const RankRange& range : ranges) {
      for (int i = 0; i <= range.more; ++i) {
        all.push_back(range.first + i * range.step);
      }
    }
    return all;
  }

  friend bool operator==(const RankSet&, const RankSet&) = default;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
