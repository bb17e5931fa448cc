#pragma once
/// @file
/// Source [flux]: a task of a Flux job.

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Flux also sets PMI_RANK, and srun may have started its brokers. Only the FLUX_ variables have the task's local rank.
struct FluxSource {
  static constexpr const char* name = "flux";

  static bool present(const Variables& variables) {
    return variables.has("FLUX_TASK_RANK") && variables.has("FLUX_JOB_SIZE");
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity;
    identity.launcher = name;
    identity.rank = *variables.integer("FLUX_TASK_RANK");
    identity.world_size = *variables.integer("FLUX_JOB_SIZE");
    identity.local_rank = variables.integer("FLUX_TASK_LOCAL_ID");
    identity.node_count = variables.count("FLUX_JOB_NNODES");
    const std::string stated =
        variables.stated({"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"});
    complete_identity(variables, MasterHints{}, stated, identity);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
