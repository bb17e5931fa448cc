#pragma once
/// @file
/// Source [single]: rank 0 of 1, where nothing says otherwise.

#include <string>

#include "dtrain/identity/completion.hpp"
#include "dtrain/identity/local_rank_argument.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct SingleSource {
  static constexpr const char* name = "single";

  static bool present(const Variables&) { return true; }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    complete_one_node(who);
    who.master_addr = loopback_address;
    who.master_port = variables.port("MASTER_PORT").value_or(default_master_port);
    // A batch script sees the allocation's variables but runs once: never wait for tasks that srun did not start.
    const std::optional<int> tasks = parse_integer(variables.text("SLURM_NTASKS").value_or(""));
    if (variables.has("SLURM_JOB_ID") && tasks && *tasks > 1) {
      who.warnings.push_back("Slurm job of " + std::to_string(*tasks) +
                             " tasks, not started with srun: this is one process; start the program with srun for all");
    }
    if (variables.has("SM_HOSTS") && !variables.has("SM_CURRENT_HOST")) {
      who.warnings.push_back(
          quoted("SM_HOSTS", *variables.text("SM_HOSTS")) +
          " is set without SM_CURRENT_HOST: this is one process; set SM_CURRENT_HOST to join the others");
    }
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
