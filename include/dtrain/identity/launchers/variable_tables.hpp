#pragma once
/// @file
/// Identity sources of launchers with named variables: [openmpi], [pmi], [slurm], [dtrain], [horovod] and others.
/// complete_identity(): adds the store's address.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/formats/addresses.hpp"
#include "dtrain/identity/process_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Slurm's numbers that identify the job: job and step id (step), job id for an MPI inside the allocation, or none.
enum class SlurmNumbers : std::uint8_t { none, allocation, step };

namespace detail {

/// N of PMIX_NAMESPACE="...-N@M", the form of PRRTE. nullopt for the forms of Slurm and Open MPI 4.
inline std::optional<std::uint64_t> prrte_job(std::string_view name) {
  const std::size_t at = name.rfind('@');
  const std::size_t dash = name.substr(0, at).rfind('-');
  if (at == std::string_view::npos || dash == std::string_view::npos || !parse_wide_integer(name.substr(at + 1))) {
    return std::nullopt;
  }
  return parse_wide_integer(name.substr(dash + 1, at - dash - 1));
}

inline std::optional<std::uint64_t> job_number(const Variables& variables, SlurmNumbers slurm) {
  if (const auto hnp = parse_orte_uri(variables.text("OMPI_MCA_orte_hnp_uri").value_or(""))) {
    return hnp->job >> 16;
  }
  if (const auto job = prrte_job(variables.text("PMIX_NAMESPACE").value_or(""))) {
    return job;
  }
  if (slurm != SlurmNumbers::none) {
    if (const std::optional<std::uint64_t> job = variables.wide_integer(slurm_job_id_variable(variables))) {
      constexpr std::uint64_t between_steps = 257;
      const std::uint64_t step = variables.wide_integer("SLURM_STEP_ID").value_or(0);
      return *job + (slurm == SlurmNumbers::step ? between_steps * step : 0);
    }
  }
  return variables.wide_integer("LSB_JOBID");
}

/// Reads Azure ML's variables for the host of rank 0. Uses Azure's port, not the port in AZ_BATCH_MASTER_NODE.
inline bool find_azure_master_address(const Variables& variables, ProcessIdentity& identity) {
  constexpr int azure_port = 6105;
  const std::optional<std::string_view> batch = variables.text("AZ_BATCH_MASTER_NODE");
  const std::optional<std::string_view> mpi = variables.text("AZ_BATCHAI_MPI_MASTER_NODE");
  const bool is_one_node = on_one_node(identity);
  if (is_one_node ? !batch && !mpi : !batch) {
    return false;
  }
  identity.master_addr = is_one_node
                             ? mpi.value_or(loopback_address)
                             : split_host_port("AZ_BATCH_MASTER_NODE", *batch, IdentityErrc::no_master_addr).host;
  identity.master_port = variables.port("MASTER_PORT").value_or(azure_port);
  return true;
}

/// Open MPI 4 gives every process the address of mpirun. Guesses that rank 0 runs on mpirun's host. Only rank 0 can
/// verify that: it is on that host if its own daemon is mpirun itself.
/// @throws IdentityError (no-master-addr) on rank 0 if it is on another host
inline bool guess_mpirun_host(const Variables& variables, ProcessIdentity& identity) {
  const std::string_view uri = variables.text("OMPI_MCA_orte_hnp_uri").value_or("");
  const std::optional<OrteUri> mpirun = parse_orte_uri(uri);
  if (!mpirun || mpirun->host.empty()) {
    return false;
  }
  const std::string_view daemon_uri = variables.text("OMPI_MCA_orte_local_daemon_uri").value_or("");
  const std::optional<OrteUri> daemon = parse_orte_uri(daemon_uri);
  if (identity.rank == 0 && daemon && (daemon->job != mpirun->job || daemon->daemon != mpirun->daemon)) {
    throw_identity_error(
        IdentityErrc::no_master_addr,
        "MASTER_ADDR is not set, and mpirun ran on {}, which is not the node of rank 0 ({} is another daemon than {}); "
        "pass mpirun -x MASTER_ADDR=HOST, the host of rank 0",
        {mpirun->host, quoted("OMPI_MCA_orte_hnp_uri", uri), quoted("OMPI_MCA_orte_local_daemon_uri", daemon_uri)});
  }
  identity.master_addr = mpirun->host;
  return true;
}

}  // namespace detail

/// MASTER_PORT. Else a port from 61440 to 65535, computed from the job's number: above Linux's ephemeral range, and
/// rarely the same for two jobs on a machine. Else default_master_port.
/// @throws IdentityError: bad-port, bad-integer
inline int job_port(const Variables& variables, SlurmNumbers slurm) {
  constexpr std::uint64_t first = 61440;
  constexpr std::uint64_t count = 4096;
  if (const std::optional<int> given = variables.port("MASTER_PORT")) {
    return *given;
  }
  const std::optional<std::uint64_t> job = detail::job_number(variables, slurm);
  return job ? static_cast<int>(first + *job % count) : default_master_port;
}

/// Variables that an MPI-like source may use to find its master.
struct MasterHints {
  bool slurm_allocation = false;  ///< the launcher places its processes in the order of the allocation's nodes
  bool open_mpi = false;
  const char* how = "";  ///< the way to pass a variable to every process, for the sentence
};

/// Derives fields on one node, checks ranges, and sets master_addr and master_port. Adds "master_addr" to `provisional`
/// if it is a guess.
/// @param stated the variables of `identity`, as Variables::stated() returns them
/// @throws IdentityError: rank-out-of-range, no-master-addr, bad-port, bad-hostlist, ambiguous-address
inline void complete_identity(const Variables& variables, const MasterHints& hints, const std::string& stated,
                              ProcessIdentity& identity) {
  complete_one_node(identity);
  check_ranges(identity, stated);
  identity.master_addr = variables.text("MASTER_ADDR");
  if (!identity.master_addr && hints.open_mpi && detail::find_azure_master_address(variables, identity)) {
    return;
  }
  identity.master_port = job_port(variables, hints.slurm_allocation ? SlurmNumbers::allocation : SlurmNumbers::none);
  if (identity.master_addr) {
    return;
  }
  if (on_one_node(identity)) {
    identity.master_addr = loopback_address;
    return;
  }
  if (hints.slurm_allocation && variables.has("SLURM_JOB_NODELIST")) {
    identity.master_addr = first_slurm_node(variables, "SLURM_JOB_NODELIST");
  } else if (!hints.open_mpi || !detail::guess_mpirun_host(variables, identity)) {
    throw_identity_error(
        IdentityErrc::no_master_addr,
        "{}: MASTER_ADDR is not set, and the host of rank 0 is not in the environment ({}); set MASTER_ADDR on every "
        "process to the host of rank 0{}",
        {identity.launcher, stated, hints.how});
  }
  identity.provisional.push_back("master_addr");
}

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
  static constexpr LauncherVariables names{name, "PMI_RANK", "PMI_SIZE"};  ///< the names in every version

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

struct SlurmSource {
  static constexpr const char* name = "slurm";

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity;
    identity.launcher = name;
    identity.rank = *variables.integer("SLURM_PROCID");
    identity.world_size = *variables.integer(slurm_size_variable(variables));
    variables.wide_integer("SLURM_STEP_ID");
    identity.attempt = variables.integer("SLURM_RESTART_COUNT").value_or(0);
    fill_from_slurm_step(variables, identity);
    complete_one_node(identity);
    check_ranges(identity, stated(variables));
    identity.master_addr = variables.text("MASTER_ADDR");
    if (!identity.master_addr) {
      identity.master_addr = on_one_node(identity) ? loopback_address : first_host(variables, identity.rank);
    }
    identity.master_port = job_port(variables, SlurmNumbers::step);
    return identity;
  }

  static std::string stated(const Variables& variables) {
    return variables.stated({"SLURM_PROCID", slurm_size_variable(variables), "SLURM_LOCALID", "SLURM_NODEID",
                             "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE", "SLURM_GTIDS"});
  }

 private:
  /// Task 0 runs on the step's node 0, unless the user placed the tasks. Only task 0 can verify that: its own node is
  /// in SLURMD_NODENAME. SLURM_LAUNCH_NODE_IPADDR is not used: it is srun's host.
  static std::string first_host(const Variables& variables, int rank) {
    const std::string_view distribution = variables.text("SLURM_DISTRIBUTION").value_or("");
    const std::optional<std::string_view> nodes = variables.text("SLURM_STEP_NODELIST");
    const bool placed_by_hand = distribution.substr(0, distribution.find_first_of(",:")) == "arbitrary";
    if (nodes && !placed_by_hand) {
      std::string first = first_slurm_node(variables, "SLURM_STEP_NODELIST");
      const std::string_view own = variables.text("SLURMD_NODENAME").value_or(first);
      if (rank == 0 && own != first) {
        throw_identity_error(
            IdentityErrc::no_master_addr,
            "MASTER_ADDR is not set, and task 0 runs on another node than the first of the step ({}, {}); set "
            "MASTER_ADDR on every task to the host of task 0",
            {variables.stated({"SLURMD_NODENAME", "SLURM_STEP_NODELIST"}), stated(variables)});
      }
      return first;
    }
    const std::string why =
        placed_by_hand ? format_text("with {} (srun -m arbitrary)", {quoted("SLURM_DISTRIBUTION", distribution)})
                       : "without SLURM_STEP_NODELIST";
    throw_identity_error(
        IdentityErrc::no_master_addr,
        "MASTER_ADDR is not set, and {} the node of task 0 cannot be read from the environment ({}); set MASTER_ADDR "
        "on every task to the host of task 0",
        {why, stated(variables)});
  }
};

struct SingleSource {
  static constexpr const char* name = "single";

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity;
    identity.launcher = name;
    complete_one_node(identity);
    identity.master_addr = loopback_address;
    identity.master_port = variables.port("MASTER_PORT").value_or(default_master_port);
    if (!variables.has("DTRAIN_LAUNCHER")) {
      warn(variables, identity);
    }
    return identity;
  }

  /// Node 0 of several needs MASTER_ADDR; a job of one node does not.
  static void warn_of_first_node(const Variables& variables, std::vector<std::string>& warnings) {
    if (variables.has("NODE_RANK") && variables.has("MASTER_ADDR") && !variables.has("NNODES") &&
        !variables.has("AZUREML_NODE_COUNT")) {
      warnings.push_back(variables.stated({"NODE_RANK", "MASTER_ADDR"}) +
                         " are set without NNODES: this is a job of its own, without other nodes; set NNODES for every "
                         "node's launch::PerNode program, or RANK and WORLD_SIZE for every process of another");
    }
  }

 private:
  /// Warns about variables that may show, but often do not, that the job has other processes.
  static void warn(const Variables& variables, ProcessIdentity& identity) {
    // A batch script has the allocation's variables but runs once: do not wait for tasks that srun did not start.
    for (const auto& [variable, what] :
         {std::pair("SLURM_NTASKS", "tasks"), std::pair("SLURM_JOB_NUM_NODES", "nodes")}) {
      const std::optional<int> count = parse_integer(variables.text(variable).value_or(""));
      if (variables.has("SLURM_JOB_ID") && count.value_or(1) > 1) {
        identity.warnings.push_back(
            format_text("Slurm job of {} {}, not started with srun: this is one process; start the program with srun "
                        "for all",
                        {*count, what}));
        break;
      }
    }
    if (variables.has("SM_HOSTS") &&
        !variables.has("SM_CURRENT_HOST")) {  // the job has one host: check_complete() rejects more
      identity.warnings.push_back(
          quoted("SM_HOSTS", *variables.text("SM_HOSTS")) +
          " is set without SM_CURRENT_HOST: this is one process; set SM_CURRENT_HOST to join the others");
    }
    // A parameter sweep is also an Indexed Job, whose pods are independent.
    if (variables.has("JOB_COMPLETION_INDEX") && !variables.has("WORLD_SIZE")) {
      identity.warnings.push_back(
          variables.stated({"JOB_COMPLETION_INDEX"}) +
          " is set without WORLD_SIZE: this is one process; set WORLD_SIZE and MASTER_ADDR in the "
          "manifest to make the pods one job");
    }
    if (parse_integer(variables.text("VC_TASK_INDEX").value_or("")).value_or(0) > 0) {
      identity.warnings.push_back(
          variables.stated({"VC_TASK_INDEX"}) +
          " is set without RANK and WORLD_SIZE: this is one process; add Volcano's plugin pytorch, or set RANK, "
          "WORLD_SIZE and MASTER_ADDR, to make the pods one job");
    }
    warn_of_first_node(variables, identity.warnings);
    warn_of_first_local_rank(variables, identity.warnings);
  }

  static void warn_of_first_local_rank(const Variables& variables, std::vector<std::string>& warnings) {
    for (const auto& [local, whole] :
         {std::pair("LOCAL_RANK", "RANK and WORLD_SIZE"),
          std::pair("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE")}) {
      if (variables.has(local)) {  // 0: check_complete() rejects others
        warnings.push_back(format_text("{} is set without {}: this is one process; set both for every process of a job",
                                       {variables.stated({local}), whole}));
      }
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
