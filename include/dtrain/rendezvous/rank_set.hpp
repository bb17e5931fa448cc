#pragma once
/// @file
/// RankSet: some ranks of a job, in few bytes.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Ascending runs of equal steps: the usual parts of a job (a node's ranks, every eighth rank) are one run each.
struct RankSet {
  /// first, first + step, and so on: `more` ranks after the first.
  struct Run {
    int first = 0;
    int step = 1;
    int more = 0;

    int last() const noexcept { return first + step * more; }
    bool contains(int rank) const noexcept { return rank >= first && rank <= last() && (rank - first) % step == 0; }

    friend bool operator==(const Run&, const Run&) = default;
  };

  std::vector<Run> runs;  ///< each begins behind the end of the one before

  /// @param ranks in any order, each once
  static RankSet of(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    RankSet set;
    for (const int rank : ranks) {
      if (!set.runs.empty()) {
        Run& run = set.runs.back();
        if (run.more == 0) {
          run.step = rank - run.first;
        }
        if (rank == run.last() + run.step) {
          ++run.more;
          continue;
        }
      }
      set.runs.push_back({rank, 1, 0});
    }
    return set;
  }

  static RankSet first_of(int count) { return {{{0, 1, count - 1}}}; }

  std::size_t size() const noexcept {
    std::size_t sum = 0;
    for (const Run& run : runs) {
      sum += static_cast<std::size_t>(run.more) + 1;
    }
    return sum;
  }

  bool contains(int rank) const noexcept {
    return std::any_of(runs.begin(), runs.end(), [rank](const Run& run) { return run.contains(rank); });
  }

  /// The largest; -1 where there is none.
  int last() const noexcept { return runs.empty() ? -1 : runs.back().last(); }

  /// All of them, ascending.
  std::vector<int> ranks() const {
    std::vector<int> all;
    for (const Run& run : runs) {
      for (int i = 0; i <= run.more; ++i) {
        all.push_back(run.first + i * run.step);
      }
    }
    return all;
  }

  friend bool operator==(const RankSet&, const RankSet&) = default;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
