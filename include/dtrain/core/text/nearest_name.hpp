#pragma once
/// @file
/// nearest_name(): the known name that a misspelt one may mean. edit_distance() of two texts.

#include <cstddef>
#include <span>
#include <string_view>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// Levenshtein distance: number of insertions, deletions and replacements of one letter that change `b` into `a`.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The known name with the fewest edits from `given`: two at most, and one, but not of the first letter, for a name of
/// fewer than six letters. Empty if there is none. @param prefix bytes that all names begin with, which do not count
std::string_view nearest_name(std::string_view given, std::span<const std::string_view> known, std::size_t prefix);

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

DTRAIN_DEFINED std::string_view nearest_name(std::string_view given, std::span<const std::string_view> known,
                                             std::size_t prefix) {
  if (given.size() <= prefix) {
    return {};
  }
  std::string_view nearest;
  std::size_t fewest = 3;
  for (const std::string_view name : known) {
    const bool is_short = name.size() - prefix < 6;  // --map and --drop are two letters from --wrap
    if (is_short && given[prefix] != name[prefix]) {
      continue;  // --find and --kind are one letter from --bind
    }
    // A longer text, whose length nothing bounds, has more than two edits.
    const std::size_t edits = given.size() > name.size() + 2 ? fewest : edit_distance(given, name);
    if (edits < std::min<std::size_t>(fewest, is_short ? 2 : 3)) {
      nearest = name;
      fewest = edits;
    }
  }
  return nearest;
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
