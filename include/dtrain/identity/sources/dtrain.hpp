#pragma once
/// @file
/// Source [dtrain]: the variables that the per-node launcher writes for its workers, taken whole.

#include "dtrain/identity/completion.hpp"
#include "dtrain/identity/local_rank_argument.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct DtrainSource {
  static constexpr const char* name = "dtrain";

  static bool present(const Variables& variables) {
    return variables.has("DTRAIN_RANK") && variables.has("DTRAIN_WORLD_SIZE");
  }

  /// Nothing else is consulted: a worker inherits whatever its launcher was started with.
  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("DTRAIN_RANK");
    who.world_size = *variables.integer("DTRAIN_WORLD_SIZE");
    who.local_rank = variables.integer("DTRAIN_LOCAL_RANK");
    who.local_world_size = variables.integer("DTRAIN_LOCAL_WORLD_SIZE");
    who.node_rank = variables.integer("DTRAIN_NODE_RANK");
    who.node_count = variables.count("DTRAIN_NODE_COUNT");
    who.attempt = variables.integer("DTRAIN_ATTEMPT").value_or(0);
    complete_one_node(who);
    check_ranges(who, variables.stated({"DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "DTRAIN_LOCAL_RANK",
                                        "DTRAIN_LOCAL_WORLD_SIZE", "DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT"}));
    who.master_addr = master_addr_or_loopback(variables, "DTRAIN_MASTER_ADDR", who);
    who.master_port = variables.port("DTRAIN_MASTER_PORT").value_or(default_master_port);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
