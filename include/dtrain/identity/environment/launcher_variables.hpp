#pragma once
/// @file
/// LauncherVariables: the names of one launcher's variables, and how they are read; RankAndSize: a rank and world size,
/// to compare two launchers.

#include <optional>
#include <string>

#include "dtrain/identity/environment/one_node.hpp"
#include "dtrain/identity/variables.hpp"

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

/// The names of one launcher. An empty name is a variable that it does not set.
struct LauncherVariables {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank = "";
  const char* local_world_size = "";
  const char* node_rank = "";
  const char* node_count = "";

  bool give_both(const Variables& variables) const { return variables.has(rank) && variables.has(world_size); }

  std::string stated(const Variables& variables) const {
    return variables.stated({rank, world_size, local_rank, local_world_size, node_rank, node_count});
  }

  /// The values, without range checks. @pre give_both(variables). @throws IdentityError (bad-integer)
  ProcessIdentity read(const Variables& variables) const {
    ProcessIdentity identity;
    identity.launcher = launcher;
    identity.rank = *variables.integer(rank);
    identity.world_size = *variables.integer(world_size);
    identity.local_rank = variables.integer(local_rank);
    identity.local_world_size = variables.integer(local_world_size);
    identity.node_rank = variables.integer(node_rank);
    identity.node_count = variables.count(node_count);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
