#pragma once
/// @file
/// Source [mvapich]: MVAPICH2's mpirun_rsh.

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct MvapichSource {
  static constexpr const char* name = "mvapich";
  static constexpr LauncherVariables names{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
                                           "MV2_COMM_WORLD_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity = names.read(variables, name);
    complete_identity(variables, MasterHints{.slurm_allocation = true}, names.stated(variables), identity);
    return identity;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
