#pragma once
/// @file
/// Completeness check: errors, with remedies, for a launcher's environment that lacks a variable.

#include <algorithm>
#include <optional>
#include <string>

#include "dtrain/identity/environment/half_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// Whether any launcher's world size is set.
inline bool has_a_size(const Variables& variables) {
  return variables.has("WORLD_SIZE") ||
         std::any_of(launcher_pairs.begin(), launcher_pairs.end(),
                     [&](const RankAndSizeNames& pair) { return variables.has(pair.size); });
}

}  // namespace detail

/// @pre no source is present.
/// @throws IdentityError: node-level-env, pmix-only, no-rank, no-world-size, half-identity, bad-integer
inline void check_complete(const Variables& variables) {
  const std::optional<std::string> nodes = variables.text("PET_NNODES");
  const std::string per_node = variables.text("PET_NPROC_PER_NODE").value_or("1");
  if (nodes && !variables.has("RANK") && (*nodes != "1" || per_node != "1")) {
    throw IdentityError(IdentityErrc::node_level_env,
                        quoted("PET_NNODES", *nodes) + " with " + quoted("PET_NPROC_PER_NODE", per_node) +
                            " describes a node, not a process; start the program through the per-node launcher "
                            "(dtrain::launch::PerNode), or set RANK and WORLD_SIZE for every process");
  }
  const std::optional<std::string> pmix_rank = variables.text("PMIX_RANK");
  if (pmix_rank && !detail::has_a_size(variables)) {
    throw IdentityError(IdentityErrc::pmix_only, quoted("PMIX_RANK", *pmix_rank) +
                                                     " is set but no variable gives the number of processes; set "
                                                     "DTRAIN_RANK and DTRAIN_WORLD_SIZE on every process");
  }
  const std::optional<int> size = variables.integer("WORLD_SIZE");
  const std::optional<std::string> rank = variables.text("RANK");
  if (size && *size > 1 && !rank) {
    throw IdentityError(IdentityErrc::no_rank, "WORLD_SIZE=" + std::to_string(*size) +
                                                   " is set but RANK is not; set RANK to 0.." +
                                                   std::to_string(*size - 1) + ", another on each process");
  }
  if (rank && !size) {
    throw IdentityError(
        IdentityErrc::no_world_size,
        quoted("RANK", *rank) + " is set but WORLD_SIZE is not; set WORLD_SIZE to the number of processes");
  }
  check_half_identity(variables);
}

}  // namespace DTRAIN_NAMESPACE::identity
