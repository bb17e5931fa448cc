#pragma once
/// @file
/// Text of a list of ranks, for error sentences: "rank 3", "ranks 0-2 and 7".

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Ranges of consecutive ranks: "0-3", "7". After `max_ranges` ranges, the other ranks are counted ("9 more"), so that
/// a sentence about 10,000 ranks stays readable.
/// @param ranks ascending
inline std::vector<std::string> rank_ranges(const std::vector<int>& ranks, std::size_t max_ranges = 16) {
  std::vector<std::pair<int, int>> ranges;
  for (const int rank : ranks) {
    if (!ranges.empty() && ranges.back().second + 1 == rank) {
      ranges.back().second = rank;
    } else {
      ranges.emplace_back(rank, rank);
    }
  }
  std::vector<std::string> parts;
  std::size_t named = 0;
  for (std::size_t i = 0; i < ranges.size() && i < max_ranges; ++i) {
    const auto& [first, last] = ranges[i];
    named += static_cast<std::size_t>(last - first) + 1;
    parts.push_back(first == last ? std::to_string(first) : format_text("{}-{}", {first, last}));
  }
  if (named < ranks.size()) {
    parts.push_back(std::to_string(ranks.size() - named) + " more");
  }
  return parts;
}

/// "ranks 0-3 and 7", made by rank_ranges; "no rank" if there is none. @param ranks ascending
inline std::string rank_list(const std::vector<int>& ranks, std::size_t max_ranges = 16) {
  if (ranks.empty()) {
    return "no rank";
  }
  const std::vector<std::string> parts = rank_ranges(ranks, max_ranges);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return text;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
