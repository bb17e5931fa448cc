#pragma once
/// @file
/// Source [openmpi]: a process that Open MPI's mpirun started.

#include "dtrain/identity/launcher_variables.hpp"
#include "dtrain/identity/local_rank_argument.hpp"
#include "dtrain/identity/master.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// OMPI_COMM_WORLD_NODE_RANK is this process's rank among those on its node, never the node's; OMPI_UNIVERSE_SIZE
/// counts slots; OMPI_MCA_* settings alone are no launch.
struct OpenMpiSource {
  static constexpr const char* name = "openmpi";
  static constexpr LauncherVariables names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who = names.read(variables, name);
    who.node_count = variables.count("OMPI_MCA_orte_num_nodes");
    who.node_count = who.node_count ? who.node_count : variables.count("AZUREML_NODE_COUNT");
    const std::string stated = variables.stated({names.rank, names.world_size, names.local_rank, names.local_world_size,
                                                 "OMPI_MCA_orte_num_nodes", "AZUREML_NODE_COUNT"});
    complete_one_node(who);
    check_ranges(who, stated);
    find_master(variables, {.slurm_allocation = true, .open_mpi = true, .how = ": mpirun -x MASTER_ADDR=HOST"}, stated,
                who);
    guess_node_rank(who);
    return who;
  }

 private:
  /// Right where mpirun filled node after node with equally many; nothing says that it did.
  static void guess_node_rank(ProcessIdentity& who) {
    const long long local_size = who.local_world_size.value_or(0);
    if (who.node_rank || !who.node_count || local_size == 0 || local_size * *who.node_count != who.world_size ||
        who.local_rank != static_cast<int>(who.rank % local_size)) {
      return;
    }
    who.node_rank = static_cast<int>(who.rank / local_size);
    who.provisional.emplace_back("node_rank");
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
