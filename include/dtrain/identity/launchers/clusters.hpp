#pragma once
/// @file
/// Sources [tf_config] and [vertex]: one variable with a JSON list of the cluster's processes.

#include <array>
#include <string_view>

#include "dtrain/identity/environment/cluster_identity.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// TF_CONFIG, which TensorFlow's jobs, Kubeflow and Vertex AI set. Ranks are the chief (or master), then the workers.
/// Parameter servers and evaluators are no ranks.
struct TfConfigSource {
  static constexpr const char* name = "tf_config";
  static constexpr std::array<std::string_view, 3> ranked{"chief", "master", "worker"};
  static constexpr std::array<std::string_view, 2> unranked{"ps", "evaluator"};
  static constexpr std::array<std::string_view, 2> alone{"chief", "master"};
  static constexpr ClusterRoles roles{"TF_CONFIG", ranked, unranked, alone};
};

/// CLUSTER_SPEC, which Vertex AI sets for its custom jobs. Ranks are worker pool 0, then worker pool 1; pools 2 and 3
/// are for parameter servers and evaluators.
struct VertexSource {
  static constexpr const char* name = "vertex";
  static constexpr std::array<std::string_view, 2> ranked{"workerpool0", "workerpool1"};
  static constexpr std::array<std::string_view, 2> unranked{"workerpool2", "workerpool3"};
  static constexpr ClusterRoles roles{"CLUSTER_SPEC", ranked, unranked, {}};
};

template <class S>
bool cluster_is_present(const Variables& variables) {
  return has_cluster(S::roles, variables);
}

template <class S>
ProcessIdentity read_cluster_source(const Variables& variables, Arguments) {
  return identity_in_cluster(read_cluster(S::roles, variables), S::name, variables, S::roles.variable);
}

}  // namespace DTRAIN_NAMESPACE::identity
