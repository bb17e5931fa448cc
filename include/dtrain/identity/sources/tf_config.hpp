#pragma once
/// @file
/// Source [tf_config]: TF_CONFIG, which TensorFlow's jobs, Kubeflow and Vertex AI set.

#include <array>
#include <string_view>

#include "dtrain/identity/environment/cluster_identity.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Ranks are the chief (or master), then the workers. Parameter servers and evaluators are no ranks.
struct TfConfigSource {
  static constexpr const char* name = "tf_config";
  static constexpr std::array<std::string_view, 3> ranked{"chief", "master", "worker"};
  static constexpr std::array<std::string_view, 2> unranked{"ps", "evaluator"};
  static constexpr std::array<std::string_view, 2> alone{"chief", "master"};
  static constexpr ClusterRoles roles{"TF_CONFIG", ranked, unranked, alone};

  static bool present(const Variables& variables) { return has_cluster(roles, variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    return identity_in_cluster(read_cluster(roles, variables), name, variables, roles.variable);
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
