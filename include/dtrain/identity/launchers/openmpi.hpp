#pragma once
/// @file
/// Source [openmpi]: a process that Open MPI's mpirun started.

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Variables that it does not use: OMPI_COMM_WORLD_NODE_RANK is the process's rank on its node, not the node rank;
/// OMPI_UNIVERSE_SIZE counts slots. OMPI_MCA_* alone do not show that mpirun started the process.
struct OpenMpiSource {
  static constexpr const char* name = "openmpi";
  static constexpr LauncherVariables names{name, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity = names.read(variables);
    identity.node_count = variables.count("OMPI_MCA_orte_num_nodes");
    identity.node_count = identity.node_count ? identity.node_count : variables.count("AZUREML_NODE_COUNT");
    const std::string stated = variables.stated({names.rank, names.world_size, names.local_rank, names.local_world_size,
                                                 "OMPI_MCA_orte_num_nodes", "AZUREML_NODE_COUNT"});
    complete_identity(variables, {.slurm_allocation = true, .open_mpi = true, .how = ": mpirun -x MASTER_ADDR=HOST"},
                      stated, identity);
    guess_node_rank(identity);
    return identity;
  }

 private:
  /// Guesses that mpirun filled node after node with equal numbers of ranks; no variable confirms it.
  static void guess_node_rank(ProcessIdentity& identity) {
    const long long local_size = identity.local_world_size.value_or(0);
    if (identity.node_rank || !identity.node_count || local_size == 0 ||
        local_size * *identity.node_count != identity.world_size ||
        identity.local_rank != static_cast<int>(identity.rank % local_size)) {
      return;
    }
    identity.node_rank = static_cast<int>(identity.rank / local_size);
    identity.provisional.push_back("node_rank");
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
