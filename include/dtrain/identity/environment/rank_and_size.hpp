#pragma once
/// @file
/// Rank and world size of one launcher, for comparing launchers.

#include <optional>

#include "dtrain/identity/environment/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// A rank and its job's world size.
struct RankAndSize {
  int rank = 0;
  int world_size = 1;

  friend bool operator==(const RankAndSize&, const RankAndSize&) = default;
};

/// Values of both variables; nullopt unless both are numbers. For comparing sources, so it does not throw.
inline std::optional<RankAndSize> stated_rank_and_size(const Variables& variables, std::string_view rank,
                                                       std::string_view size) {
  const std::optional<int> stated_rank = parse_integer(variables.text(rank).value_or(""));
  const std::optional<int> stated_size = parse_integer(variables.text(size).value_or(""));
  return stated_rank && stated_size ? std::optional(RankAndSize{*stated_rank, *stated_size}) : std::nullopt;
}

/// Whether two launchers give the same world size (above 1), but different ranks.
inline bool conflict(const RankAndSize& a, const RankAndSize& b) noexcept {
  return a.world_size == b.world_size && a.world_size > 1 && a.rank != b.rank;
}

}  // namespace DTRAIN_NAMESPACE::identity
