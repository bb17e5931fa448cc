#pragma once
/// @file
/// Source [dtrain]: the variables that the per-node launcher sets for its workers.

#include "dtrain/identity/complete_identity.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct DtrainSource {
  static constexpr const char* name = "dtrain";

  static bool present(const Variables& variables) {
    return variables.has("DTRAIN_RANK") && variables.has("DTRAIN_WORLD_SIZE");
  }

  /// Reads DTRAIN_ variables only: a worker inherits other variables, which describe its launcher.
  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity;
    identity.launcher = name;
    identity.rank = *variables.integer("DTRAIN_RANK");
    identity.world_size = *variables.integer("DTRAIN_WORLD_SIZE");
    identity.local_rank = variables.integer("DTRAIN_LOCAL_RANK");
    identity.local_world_size = variables.integer("DTRAIN_LOCAL_WORLD_SIZE");
    identity.node_rank = variables.integer("DTRAIN_NODE_RANK");
    identity.node_count = variables.count("DTRAIN_NODE_COUNT");
    identity.attempt = variables.integer("DTRAIN_ATTEMPT").value_or(0);
    complete_one_node(identity);
    check_ranges(identity, variables.stated({"DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "DTRAIN_LOCAL_RANK",
                                             "DTRAIN_LOCAL_WORLD_SIZE", "DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT"}));
    identity.master_addr = master_addr_or_loopback(variables, "DTRAIN_MASTER_ADDR", identity);
    identity.master_port = variables.port("DTRAIN_MASTER_PORT").value_or(default_master_port);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
