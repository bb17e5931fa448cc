#pragma once
/// @file
/// Source [mvapich]: MVAPICH2's mpirun_rsh.

#include "dtrain/identity/launcher_variables.hpp"
#include "dtrain/identity/local_rank_argument.hpp"
#include "dtrain/identity/master.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct MvapichSource {
  static constexpr const char* name = "mvapich";
  static constexpr LauncherVariables names{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
                                           "MV2_COMM_WORLD_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who = names.read(variables, name);
    complete_one_node(who);
    check_ranges(who, names.stated(variables));
    find_master(variables, MasterHints{.slurm_allocation = true}, names.stated(variables), who);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
