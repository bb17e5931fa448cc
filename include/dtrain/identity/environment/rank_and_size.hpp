#pragma once
/// @file
/// Rank and world size as some launcher states them, for comparing launchers.

#include <optional>

#include "dtrain/identity/environment/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// A rank among its job's.
struct RankAndSize {
  int rank = 0;
  int world_size = 1;

  friend bool operator==(const RankAndSize&, const RankAndSize&) = default;
};

/// Nothing unless both variables are numbers: for comparing with a launcher that is not asked for more.
inline std::optional<RankAndSize> stated_rank_and_size(const Variables& variables, std::string_view rank,
                                                       std::string_view size) {
  const std::optional<int> stated_rank = parse_integer(variables.text(rank).value_or(""));
  const std::optional<int> stated_size = parse_integer(variables.text(size).value_or(""));
  return stated_rank && stated_size ? std::optional(RankAndSize{*stated_rank, *stated_size}) : std::nullopt;
}

/// Both for the same job, in which they would be two ranks.
inline bool conflict(const RankAndSize& a, const RankAndSize& b) noexcept {
  return a.world_size == b.world_size && a.world_size > 1 && a.rank != b.rank;
}

}  // namespace DTRAIN_NAMESPACE::identity
