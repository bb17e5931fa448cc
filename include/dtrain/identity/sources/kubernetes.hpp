#pragma once
/// @file
/// Source [k8s]: a pod of an Indexed Job whose manifest adds WORLD_SIZE and MASTER_ADDR.

#include "dtrain/identity/complete_identity.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct KubernetesSource {
  static constexpr const char* name = "k8s";

  /// JOB_COMPLETION_INDEX without WORLD_SIZE is not a distributed job.
  static bool present(const Variables& variables) {
    return variables.has("JOB_COMPLETION_INDEX") && !variables.has("RANK") && variables.has("WORLD_SIZE") &&
           variables.text("WORLD_SIZE") != "1";
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity;
    identity.launcher = name;
    identity.rank = *variables.integer("JOB_COMPLETION_INDEX");
    identity.world_size = *variables.integer("WORLD_SIZE");
    complete_one_node(identity);
    check_ranges(identity, variables.stated({"JOB_COMPLETION_INDEX", "WORLD_SIZE"}));
    identity.master_addr = master_addr_or_loopback(variables, "MASTER_ADDR", identity);
    identity.master_port = variables.port("MASTER_PORT").value_or(default_master_port);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
