#pragma once
/// @file
/// Identity source [torch]: RANK, WORLD_SIZE of torchrun, DeepSpeed, Azure ML, Kubeflow, Ray or scripts.

#include <string>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/launchers/variable_tables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// If TORCHELASTIC_RUN_ID is set (elastic), torchrun set the variables for this process, and the source trusts them.
/// Otherwise they may have been exported before a launcher started the processes, so the source compares them with
/// that launcher's variables.
struct TorchSource {
  static constexpr const char* name = "torch";

  static ProcessIdentity read(const Variables& variables, Arguments arguments) {
    ProcessIdentity identity;
    identity.launcher = name;
    identity.rank = *variables.integer("RANK");
    identity.world_size = *variables.integer("WORLD_SIZE");
    identity.job = variables.text("TORCHELASTIC_RUN_ID");
    const bool elastic = identity.elastic = identity.job.has_value();
    identity.attempt = elastic ? variables.integer("TORCHELASTIC_RESTART_COUNT").value_or(0) : 0;
    const std::optional<int> argument = local_rank_argument(arguments);
    if (!elastic) {
      check_conflicts(variables, identity);
      if (identity.world_size == 1 && !argument && !is_inner(variables)) check_alone(variables);
    }
    read_local(variables, argument, elastic, identity);
    read_node(variables, elastic, identity);
    if (!elastic) {
      fill_gaps(variables, identity);
    }
    complete_one_node(identity);
    guess_local_size(variables, identity);
    check_ranges(identity, stated(variables, argument));
    identity.master_addr = master_addr_or_loopback(variables, "MASTER_ADDR", identity);
    identity.master_port = read_port(variables);
    return identity;
  }

  /// With the agent store, torchrun itself listens on MASTER_PORT (bind returns EADDRINUSE), so the next port is used.
  static int read_port(const Variables& variables) {
    constexpr int last = 65535;
    constexpr int first_above_ephemeral = 61440;
    const int port = variables.port("MASTER_PORT").value_or(default_master_port);
    if (variables.text("TORCHELASTIC_USE_AGENT_STORE") != "True") {
      return port;
    }
    return port == last ? first_above_ephemeral : port + 1;
  }

 private:
  /// A batch script that exports RANK=$SLURM_PROCID gives every task RANK=0, so that each would be rank 0.
  static void check_conflicts(const Variables& variables, const ProcessIdentity& identity) {
    check_conflict(variables, identity, "SLURM_PROCID", slurm_step_rank_and_size(variables));
    for (const LauncherVariables& mpi : {OpenMpiSource::names, PmiSource::names}) {
      check_conflict(variables, identity, mpi.rank, mpi.rank_and_size(variables));
    }
  }

  static void check_conflict(const Variables& variables, const ProcessIdentity& identity, const char* variable,
                             const std::optional<RankAndSize>& other) {
    if (other && other->world_size == identity.world_size && other->world_size > 1 && other->rank != identity.rank) {
      throw_identity_error(
          IdentityErrc::conflict_rank,
          "{} but {}, both for {} processes; was RANK exported before the processes were started? Unset RANK, or set "
          "DTRAIN_RANK and DTRAIN_WORLD_SIZE",
          {variables.stated({"RANK"}), variables.stated({variable}), identity.world_size});
    }
  }

  /// Whether a launcher that itself runs in each process of another one has set RANK and WORLD_SIZE: DeepSpeed, a Ray
  /// worker, whose raylet srun may have started, or what the user says is one.
  static bool is_inner(const Variables& variables) {
    return variables.has("CROSS_SIZE") || variables.has("RAY_JOB_ID") || variables.has("DTRAIN_LAUNCHER");
  }

  /// With RANK=0 and WORLD_SIZE=1, exported before the processes were started, each would train alone.
  static void check_alone(const Variables& variables) {
    const LauncherVariables step{"slurm", "SLURM_PROCID", slurm_size_variable(variables)};
    if (slurm_step_rank_and_size(variables)) check_alone_beside(variables, step);
    for (const LauncherVariables* const names :
         {&horovod_names, &OpenMpiSource::names, &jsrun_names, &mvapich_names, &flux_names, &PmiSource::names}) {
      check_alone_beside(variables, *names);
    }
  }

  static void check_alone_beside(const Variables& variables, const LauncherVariables& other) {
    const std::optional<RankAndSize> job = other.rank_and_size(variables);
    if (!job || job->world_size <= 1) return;
    throw_identity_error(
        IdentityErrc::conflict_rank,
        "{} say that this process is alone, but {} that it is one of {}; were RANK and WORLD_SIZE exported before the "
        "processes were started? Unset RANK and WORLD_SIZE, or set DTRAIN_LAUNCHER={}, or DTRAIN_LAUNCHER=none for a "
        "process that is meant to be alone",
        {variables.stated({"RANK", "WORLD_SIZE"}), variables.stated({other.rank, other.world_size}), job->world_size,
         other.launcher});
  }

  static void read_local(const Variables& variables, const std::optional<int>& argument, bool elastic,
                         ProcessIdentity& identity) {
    const std::optional<int> variable = variables.integer("LOCAL_RANK");
    if (variable && argument && *variable != *argument) {
      throw_identity_error(IdentityErrc::conflict_local_rank,
                           "LOCAL_RANK={} but the argument --local_rank={}; unset one of them", {*variable, *argument});
    }
    identity.local_rank = variable ? variable : argument;
    identity.local_world_size = variables.integer("LOCAL_WORLD_SIZE");
    if (!identity.local_world_size && variables.has("CROSS_SIZE")) {
      identity.local_world_size = variables.integer("LOCAL_SIZE");  // DeepSpeed's names
    }
    if (!identity.local_rank && !elastic) {
      read_pod(variables, identity);
    }
  }

  /// Kubeflow's RANK is the pod's rank, but its WORLD_SIZE counts processes (kubeflow/trainer issue 1790).
  static void read_pod(const Variables& variables, ProcessIdentity& identity) {
    const std::optional<std::string_view> processes = variables.text("PET_NPROC_PER_NODE");
    if (!processes) {
      return;
    }
    if (*processes != "1") {
      throw_identity_error(
          IdentityErrc::node_level_env,
          "RANK={} of WORLD_SIZE={} with {} describes a node, not a process; start the program through the per-node "
          "launcher (dtrain::launch::PerNode), or set LOCAL_RANK for every process",
          {identity.rank, identity.world_size, quoted("PET_NPROC_PER_NODE", *processes)});
    }
    identity.local_rank = 0;
    identity.local_world_size = 1;
    identity.node_rank = identity.rank;
    identity.node_count = identity.world_size;
  }

  static void read_node(const Variables& variables, bool elastic, ProcessIdentity& identity) {
    if (elastic) {
      variables.fill(identity.node_rank, "GROUP_RANK");
      variables.fill(identity.node_count, "GROUP_WORLD_SIZE");
    }
    variables.fill(identity.node_rank, "NODE_RANK");
    if (variables.has("CROSS_SIZE")) {  // DeepSpeed's names
      variables.fill(identity.node_rank, "CROSS_RANK");
      variables.fill(identity.node_count, "CROSS_SIZE");
    }
    variables.fill(identity.node_count, "AZUREML_NODE_COUNT");
  }

  /// Fills unset fields from a launcher that has the same rank and world size.
  static void fill_gaps(const Variables& variables, ProcessIdentity& identity) {
    const RankAndSize own{identity.rank, identity.world_size};
    const LauncherVariables& mpi = OpenMpiSource::names;
    if (slurm_step_rank_and_size(variables) == own) {
      fill_from_slurm_step(variables, identity);
    }
    if (mpi.rank_and_size(variables) == own) {
      variables.fill(identity.local_rank, mpi.local_rank);
      variables.fill(identity.local_world_size, mpi.local_world_size);
    }
  }

  /// Guesses that all nodes have equal numbers of processes, as Azure ML starts them; no variable confirms it.
  static void guess_local_size(const Variables& variables, ProcessIdentity& identity) {
    const std::optional<int> nodes = variables.count("AZUREML_NODE_COUNT");
    if (!identity.local_world_size && nodes && identity.world_size % *nodes == 0) {
      identity.local_world_size = identity.world_size / *nodes;
      identity.provisional.push_back("local_world_size");
    }
  }

  static std::string stated(const Variables& variables, const std::optional<int>& argument) {
    const LauncherVariables& mpi = OpenMpiSource::names;
    return variables.stated({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK",
                             "GROUP_WORLD_SIZE", "NODE_RANK", "CROSS_RANK", "CROSS_SIZE", "AZUREML_NODE_COUNT",
                             "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE",
                             mpi.local_rank, mpi.local_world_size}) +
           (argument ? format_text(", the argument --local_rank={}", {*argument}) : "");
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
