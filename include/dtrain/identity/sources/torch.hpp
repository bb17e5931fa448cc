#pragma once
/// @file
/// Source [torch]: RANK and WORLD_SIZE, as torchrun, DeepSpeed, Azure ML, Kubeflow, Ray and hand-written scripts set
/// them.

#include <string>

#include "dtrain/identity/completion.hpp"
#include "dtrain/identity/local_rank_argument.hpp"
#include "dtrain/identity/slurm_step.hpp"
#include "dtrain/identity/sources/openmpi.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Elastic (TORCHELASTIC_RUN_ID is set): torchrun made the environment for this process, and it is trusted. Else it may
/// have been exported before the processes were started, and what started them is asked.
struct TorchSource {
  static constexpr const char* name = "torch";

  static bool present(const Variables& variables) { return variables.has("RANK") && variables.has("WORLD_SIZE"); }

  static ProcessIdentity read(const Variables& variables, Arguments arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("RANK");
    who.world_size = *variables.integer("WORLD_SIZE");
    who.job = variables.text("TORCHELASTIC_RUN_ID");
    const bool elastic = who.elastic = who.job.has_value();
    who.attempt = elastic ? variables.integer("TORCHELASTIC_RESTART_COUNT").value_or(0) : 0;
    if (!elastic) {
      check_conflicts(variables, who);
    }
    const std::optional<int> argument = local_rank_argument(arguments);
    read_local(variables, argument, elastic, who);
    read_node(variables, elastic, who);
    if (!elastic) {
      fill_gaps(variables, who);
    }
    complete_one_node(who);
    guess_local_size(variables, who);
    check_ranges(who, stated(variables, argument));
    who.master_addr = master_addr_or_loopback(variables, "MASTER_ADDR", who);
    who.master_port = read_port(variables);
    return who;
  }

  /// torchrun listens on MASTER_PORT itself (bind gives EADDRINUSE) when its agent store is in use: the next one, then.
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
  /// A batch script that exports RANK=$SLURM_PROCID gives every task RANK=0: all would be rank 0.
  static void check_conflicts(const Variables& variables, const ProcessIdentity& who) {
    check_conflict(variables, who, "SLURM_PROCID", slurm_step_place(variables));
    const LauncherVariables& mpi = OpenMpiSource::names;
    check_conflict(variables, who, mpi.rank, stated_place(variables, mpi.rank, mpi.world_size));
    check_conflict(variables, who, "PMI_RANK", stated_place(variables, "PMI_RANK", "PMI_SIZE"));
  }

  static void check_conflict(const Variables& variables, const ProcessIdentity& who, const char* variable,
                             const std::optional<Place>& other) {
    if (other && conflict(*other, Place{who.rank, who.world_size})) {
      throw IdentityError(IdentityErrc::conflict_rank,
                          variables.stated({"RANK"}) + " but " + variables.stated({variable}) + ", both for " +
                              std::to_string(who.world_size) +
                              " processes; was RANK exported before the processes were started? Unset RANK, or set "
                              "DTRAIN_RANK and DTRAIN_WORLD_SIZE");
    }
  }

  static void read_local(const Variables& variables, const std::optional<int>& argument, bool elastic,
                         ProcessIdentity& who) {
    const std::optional<int> variable = variables.integer("LOCAL_RANK");
    if (variable && argument && *variable != *argument) {
      throw IdentityError(IdentityErrc::conflict_local_rank,
                          "LOCAL_RANK=" + std::to_string(*variable) +
                              " but the argument --local_rank=" + std::to_string(*argument) + "; unset one of them");
    }
    who.local_rank = variable ? variable : argument;
    who.local_world_size = variables.integer("LOCAL_WORLD_SIZE");
    if (!who.local_world_size && variables.has("CROSS_SIZE")) {
      who.local_world_size = variables.integer("LOCAL_SIZE");  // DeepSpeed's names
    }
    if (!who.local_rank && !elastic) {
      read_pod(variables, who);
    }
  }

  /// Kubeflow's RANK is the pod's while its WORLD_SIZE counts processes (kubeflow/trainer issue 1790).
  static void read_pod(const Variables& variables, ProcessIdentity& who) {
    const std::optional<std::string> processes = variables.text("PET_NPROC_PER_NODE");
    if (!processes) {
      return;
    }
    if (*processes != "1") {
      throw IdentityError(IdentityErrc::node_level_env,
                          "RANK=" + std::to_string(who.rank) + " of WORLD_SIZE=" + std::to_string(who.world_size) +
                              " with " + quoted("PET_NPROC_PER_NODE", *processes) +
                              " describes a node, not a process; start the program through the per-node launcher "
                              "(dtrain::launch::PerNode), or set LOCAL_RANK for every process");
    }
    who.local_rank = 0;
    who.local_world_size = 1;
    who.node_rank = who.rank;
    who.node_count = who.world_size;
  }

  static void read_node(const Variables& variables, bool elastic, ProcessIdentity& who) {
    const auto fill = [&variables](std::optional<int>& field, const char* variable) {
      if (!field) {
        field = variables.integer(variable);
      }
    };
    if (elastic) {
      fill(who.node_rank, "GROUP_RANK");
      fill(who.node_count, "GROUP_WORLD_SIZE");
    }
    fill(who.node_rank, "NODE_RANK");
    if (variables.has("CROSS_SIZE")) {  // DeepSpeed's names
      fill(who.node_rank, "CROSS_RANK");
      fill(who.node_count, "CROSS_SIZE");
    }
    fill(who.node_count, "AZUREML_NODE_COUNT");
  }

  /// From a launcher that says the same rank and world size.
  static void fill_gaps(const Variables& variables, ProcessIdentity& who) {
    const Place own{who.rank, who.world_size};
    const LauncherVariables& mpi = OpenMpiSource::names;
    if (slurm_step_place(variables) == own) {
      fill_from_slurm_step(variables, who);
    }
    if (stated_place(variables, mpi.rank, mpi.world_size) == own) {
      who.local_rank = who.local_rank ? who.local_rank : variables.integer(mpi.local_rank);
      who.local_world_size = who.local_world_size ? who.local_world_size : variables.integer(mpi.local_world_size);
    }
  }

  /// Azure ML starts the same number of processes on each node, but does not say so: a guess.
  static void guess_local_size(const Variables& variables, ProcessIdentity& who) {
    const std::optional<int> nodes = variables.count("AZUREML_NODE_COUNT");
    if (!who.local_world_size && nodes && who.world_size % *nodes == 0) {
      who.local_world_size = who.world_size / *nodes;
      who.provisional.emplace_back("local_world_size");
    }
  }

  static std::string stated(const Variables& variables, const std::optional<int>& argument) {
    const LauncherVariables& mpi = OpenMpiSource::names;
    return variables.stated({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK",
                             "GROUP_WORLD_SIZE", "NODE_RANK", "CROSS_RANK", "CROSS_SIZE", "AZUREML_NODE_COUNT",
                             "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE",
                             mpi.local_rank, mpi.local_world_size}) +
           (argument ? ", the argument --local_rank=" + std::to_string(*argument) : "");
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
