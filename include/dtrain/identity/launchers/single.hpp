#pragma once
/// @file
/// Source [single]: rank 0 of 1, if no other source is present. process_sources.hpp lists it.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"

namespace DTRAIN_NAMESPACE::identity {

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
        !variables.has("SM_CURRENT_HOST")) {  // with one host: check_complete() rejects more
      identity.warnings.push_back(
          quoted("SM_HOSTS", *variables.text("SM_HOSTS")) +
          " is set without SM_CURRENT_HOST: this is one process; set SM_CURRENT_HOST to join the others");
    }
    // A parameter sweep is an Indexed Job, too, whose pods are independent.
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
