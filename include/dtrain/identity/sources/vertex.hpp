#pragma once
/// @file
/// Source [vertex]: CLUSTER_SPEC, which Vertex AI sets for its custom jobs.

#include <array>
#include <string_view>

#include "dtrain/identity/environment/cluster_identity.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Ranks are worker pool 0, then worker pool 1; pools 2 and 3 are for parameter servers and evaluators.
struct VertexSource {
  static constexpr const char* name = "vertex";
  static constexpr std::array<std::string_view, 2> ranked{"workerpool0", "workerpool1"};
  static constexpr std::array<std::string_view, 2> unranked{"workerpool2", "workerpool3"};
  static constexpr ClusterRoles roles{"CLUSTER_SPEC", ranked, unranked, {}};

  static bool present(const Variables& variables) { return has_cluster(roles, variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    return identity_in_cluster(read_cluster(roles, variables), name, variables, roles.variable);
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
