#pragma once
/// @file
/// Worker environment: the variables that the per-node launcher sets for each worker, and by which a process knows that
/// it is one; pure. NodeLauncher makes one for each worker.

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Values that the workers of a node share.
struct NodePlan {
  DTRAIN_MEMBERS_NOT_INLINED(NodePlan);

  int workers = 1;
  int first_rank = 0;  ///< number of workers of nodes with a lower node rank
  int world_size = 1;  ///< number of workers of all nodes
  int min_ranks = 0;   ///< of an elastic job, which starts its workers without a rank; 0: the job is not elastic
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr;
  int master_port = 0;
  std::string secret;               ///< of the job's store; empty if the launcher's environment has it
  int attempt = 0;                  ///< number of earlier starts of the workers
  int cores = 1;                    ///< of this node, for all workers
  bool is_bound = false;            ///< whether each worker may use some of the cores only
  std::string launcher_process;     ///< its process id
  bool stdout_is_terminal = false;  ///< whether the launcher's is
  bool stderr_is_terminal = false;  ///< whether the launcher's is
};

namespace detail {

/// Whether the variable describes the launcher's process as a rank of MPI or torchrun. Workers must not inherit it.
inline bool describes_the_launcher(std::string_view variable) noexcept {
  constexpr std::array<std::string_view, 4> prefixes{"OMPI_COMM_WORLD_", "PMI", "MV2_", "TORCHELASTIC_"};
  return variable == "DTRAIN_LAUNCHER" || variable == "DTRAIN_WRAPPED" || variable == "PALS_RANKID" ||
         std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return variable.substr(0, prefix.size()) == prefix; });
}

}  // namespace detail

/// The environment of one worker. @param base the launcher's own environment
inline identity::Environment worker_environment(const identity::Environment& base, const NodePlan& plan,
                                                int local_rank) {
  identity::Environment environment;
  for (const auto& [variable, value] : base) {
    if (!detail::describes_the_launcher(variable)) {
      environment.emplace(variable, value);
    }
  }
  const std::array<std::pair<const char*, std::string>, 7> common{{
      {"RANK", std::to_string(plan.first_rank + local_rank)},
      {"WORLD_SIZE", std::to_string(plan.world_size)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(plan.workers)},
      {"NODE_RANK", std::to_string(plan.node_rank)},
      {"MASTER_ADDR", plan.master_addr},
      {"MASTER_PORT", std::to_string(plan.master_port)},
  }};
  for (const auto& [variable, value] : common) {
    environment[variable] = value;
    environment[std::string("DTRAIN_") + variable] = value;
  }
  if (plan.min_ranks != 0) {
    for (const char* const name : {"RANK", "WORLD_SIZE", "DTRAIN_RANK"}) {
      environment.erase(name);
    }
    environment["DTRAIN_WORLD_SIZE"] = format_text("{}:{}", {plan.min_ranks, plan.world_size});
  }
  environment["DTRAIN_NODE_COUNT"] = std::to_string(plan.node_count);
  environment["DTRAIN_ATTEMPT"] = std::to_string(plan.attempt);
  environment["DTRAIN_LAUNCHER_PROCESS"] = plan.launcher_process;
  environment["DTRAIN_STDOUT_IS_TERMINAL"] = plan.stdout_is_terminal ? "1" : "0";
  environment["DTRAIN_STDERR_IS_TERMINAL"] = plan.stderr_is_terminal ? "1" : "0";
  environment.erase("DTRAIN_NODE_CORES");  // of a launcher around this one
  if (plan.is_bound) {
    environment["DTRAIN_NODE_CORES"] = std::to_string(plan.cores);
  }
  if (!plan.secret.empty()) {
    environment["DTRAIN_SECRET"] = plan.secret;
    environment.erase("DTRAIN_SECRET_FILE");
  }
  if (std::string& threads = environment["OMP_NUM_THREADS"]; threads.empty()) {
    threads = std::to_string(std::max(1, plan.cores / plan.workers));
  }
  return environment;
}

/// The environment of a launcher, without the identity of a worker of another job that may have started it.
inline identity::Environment without_outer_job(const identity::Environment& environment) {
  if (environment.count("DTRAIN_LAUNCHER_PROCESS") == 0) {
    return environment;
  }
  identity::Environment outside = environment;
  for (const std::string name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NODE_COUNT",
                                 "NODE_CORES", "MASTER_ADDR", "MASTER_PORT", "LAUNCHER_PROCESS", "ATTEMPT"}) {
    outside.erase(name);
    outside.erase(format_text("DTRAIN_{}", {name}));
  }
  return outside;
}

/// Whether DTRAIN_WORLD_SIZE is MIN:MAX.
inline bool is_elastic_worker(const identity::Variables& variables) {
  return variables.text("DTRAIN_WORLD_SIZE").value_or("").find(':') != std::string_view::npos;
}

/// Whether this is the environment of a worker that the process `parent` started itself. A child of a worker inherits
/// the variables, but has another parent.
inline bool is_worker_environment(const identity::Environment& environment, long parent) {
  const identity::Variables variables(environment);
  const bool is_rank = variables.has("DTRAIN_RANK") || is_elastic_worker(variables);
  return is_rank && variables.text("DTRAIN_LAUNCHER_PROCESS") == std::to_string(parent);
}

/// Set in a wrapped worker's environment. The worker unsets it, because its own children are no workers.
inline constexpr const char* wrapped_variable = "DTRAIN_WRAPPED";

/// The launcher's process id from the environment of a wrapped worker; nullopt for other processes. Pure.
inline std::optional<pid_t> launcher_of_wrapped(const identity::Environment& environment) {
  const identity::Variables variables(environment);
  const std::optional<std::string_view> launcher = variables.text("DTRAIN_LAUNCHER_PROCESS");
  const bool is_wrapped = variables.has(wrapped_variable) && variables.has("DTRAIN_RANK") && launcher;
  return is_wrapped ? std::optional<pid_t>(identity::parse_integer(*launcher)) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::launch
