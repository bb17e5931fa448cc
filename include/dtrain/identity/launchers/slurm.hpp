#pragma once
/// @file
/// Source [slurm]: a task of a step that srun started. process_sources.hpp lists it.

#include <string>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

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

}  // namespace DTRAIN_NAMESPACE::identity
