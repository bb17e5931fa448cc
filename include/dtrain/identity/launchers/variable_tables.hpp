#pragma once
/// @file
/// Sources of launchers that state each process's ranks in named variables, a row of names for each launcher; sources
/// [openmpi]: Open MPI's mpirun, and [pmi]: MPICH's, Intel MPI's and PALS' mpiexec. process_sources.hpp lists them.

#include <optional>
#include <string>

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
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

struct PmiSource {
  static constexpr const char* name = "pmi";
  static constexpr LauncherVariables names{name, "PMI_RANK", "PMI_SIZE"};  ///< in every version

  /// Whether Slurm provides the PMI variables. Then source [slurm] is better: it also has local and node ranks.
  static bool yields_to_slurm(const Variables& variables) {
    const std::optional<RankAndSize> step = slurm_step_rank_and_size(variables);
    return step && step == names.rank_and_size(variables);
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    const LauncherVariables all{
        name,
        names.rank,
        names.world_size,
        first_set(variables, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        first_set(variables, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
        "PALS_NODEID",
    };
    ProcessIdentity identity = all.read(variables);
    const std::string stated =
        variables.stated({names.rank, names.world_size, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID",
                          "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "PALS_NODEID"});
    complete_identity(variables, {.slurm_allocation = true, .how = ": mpiexec -genv MASTER_ADDR HOST"}, stated,
                      identity);
    return identity;
  }

 private:
  static const char* first_set(const Variables& variables, const char* a, const char* b, const char* c) {
    return variables.has(a) ? a : variables.has(b) ? b : c;
  }
};

/// The per-node launcher. Only DTRAIN_ variables count: a worker inherits other variables, which describe its launcher.
inline constexpr LauncherVariables dtrain_names{
    "dtrain",           "DTRAIN_RANK",      "DTRAIN_WORLD_SIZE", "DTRAIN_LOCAL_RANK", "DTRAIN_LOCAL_WORLD_SIZE",
    "DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT"};

/// A process that horovodrun started with Gloo. HOROVOD_CROSS_RANK is not used: it counts only hosts that have this
/// local rank. If hosts have different numbers of ranks, it is not the node rank.
inline constexpr LauncherVariables horovod_names{"horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
                                                 "HOROVOD_LOCAL_SIZE"};

/// IBM's launcher for LSF.
inline constexpr LauncherVariables jsrun_names{"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
                                               "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"};

/// MVAPICH2's mpirun_rsh.
inline constexpr LauncherVariables mvapich_names{"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                                                 "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"};

/// Flux also sets PMI_RANK, and srun may have started its brokers. Only the FLUX_ variables have the task's local rank.
inline constexpr LauncherVariables flux_names{"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "",
                                              "",     "FLUX_JOB_NNODES"};

/// A pod of an Indexed Job whose manifest adds WORLD_SIZE and MASTER_ADDR.
inline constexpr LauncherVariables kubernetes_names{"k8s", "JOB_COMPLETION_INDEX", "WORLD_SIZE"};

/// The identity that `names` give, with the master address that the launcher gives or that is derived.
/// @throws as complete_identity
inline ProcessIdentity read_launcher(const Variables& variables, const LauncherVariables& names,
                                     const MasterHints& hints) {
  ProcessIdentity identity = names.read(variables);
  complete_identity(variables, hints, names.stated(variables), identity);
  return identity;
}

template <const LauncherVariables& names>
ProcessIdentity read_launcher(const Variables& variables, Arguments) {
  return read_launcher(variables, names, {.slurm_allocation = &names == &mvapich_names});
}

namespace detail {
/// The identity that `names` give, with a master that is stated in `master_addr` and `master_port`.
inline ProcessIdentity read_with_master(const Variables& variables, const LauncherVariables& names, const char* attempt,
                                        const char* master_addr, const char* master_port) {
  ProcessIdentity identity = names.read(variables);
  identity.attempt = variables.integer(attempt).value_or(0);
  complete_one_node(identity);
  check_ranges(identity, names.stated(variables));
  identity.master_addr = master_addr_or_loopback(variables, master_addr, identity);
  identity.master_port = variables.port(master_port).value_or(default_master_port);
  return identity;
}
}  // namespace detail

inline ProcessIdentity read_dtrain(const Variables& variables, Arguments) {
  return detail::read_with_master(variables, dtrain_names, "DTRAIN_ATTEMPT", "DTRAIN_MASTER_ADDR",
                                  "DTRAIN_MASTER_PORT");
}

/// JOB_COMPLETION_INDEX without WORLD_SIZE is not a distributed job.
inline bool kubernetes_is_present(const Variables& variables) {
  return kubernetes_names.give_both(variables) && !variables.has("RANK") && variables.text("WORLD_SIZE") != "1";
}

inline ProcessIdentity read_kubernetes(const Variables& variables, Arguments) {
  return detail::read_with_master(variables, kubernetes_names, "", "MASTER_ADDR", "MASTER_PORT");
}

}  // namespace DTRAIN_NAMESPACE::identity
