#pragma once
/// @file
/// RankSet: a compact set of a job's ranks, as ascending ranges of equal steps. rank_list(), rank_ranges(): texts of
/// ranks.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

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
  static RankSet of(std::vector<int> ranks);

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
  std::vector<int> ranks() const;

  friend bool operator==(const RankSet&, const RankSet&) = default;
};

/// Ranges of consecutive ranks: "0-3", "7". After `max_ranges` ranges, the other ranks are counted ("9 more"), so that
/// a sentence about 10,000 ranks stays readable.
/// @param ranks ascending
std::vector<std::string> rank_ranges(const std::vector<int>& ranks, std::size_t max_ranges = 16);

/// "ranks 0-3 and 7", made by rank_ranges; "no rank" if there is none. @param ranks ascending
/// @param noun the word for one of them ("worker")
std::string rank_list(const std::vector<int>& ranks, std::size_t max_ranges = 16, const char* noun = "rank");

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED RankSet RankSet::of(std::vector<int> ranks) {
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

DTRAIN_DEFINED std::vector<int> RankSet::ranks() const {
  std::vector<int> all;
  for (const RankRange& range : ranges) {
    for (int i = 0; i <= range.more; ++i) {
      all.push_back(range.first + i * range.step);
    }
  }
  return all;
}

DTRAIN_DEFINED std::vector<std::string> rank_ranges(const std::vector<int>& ranks, std::size_t max_ranges) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  while (at < ranks.size() && parts.size() < max_ranges) {
    const std::size_t first = at++;
    while (at < ranks.size() && ranks[at] == ranks[at - 1] + 1) {
      ++at;
    }
    parts.push_back(at == first + 1 ? std::to_string(ranks[first])
                                    : format_text("{}-{}", {ranks[first], ranks[at - 1]}));
  }
  if (at < ranks.size()) {
    parts.push_back(format_text("{} more", {ranks.size() - at}));
  }
  return parts;
}

DTRAIN_DEFINED std::string rank_list(const std::vector<int>& ranks, std::size_t max_ranges, const char* noun) {
  if (ranks.empty()) {
    return format_text("no {}", {noun});
  }
  const std::vector<std::string> parts = rank_ranges(ranks, max_ranges);
  std::string text = format_text("{}{} ", {noun, ranks.size() == 1 ? "" : "s"});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    append_text(text, "{}{}", {i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ", parts[i]});
  }
  return text;
}

#endif

}  // namespace DTRAIN_NAMESPACE::rendezvous
