#pragma once
/// @file
/// launch::Any: launcher of a Policy: PerNode or PerProcess, as command line and environment of the process say.

#include "dtrain/core/config.hpp"
#include "dtrain/launch/launcher.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The program starts its own ranks (`--nproc-per-node=4`), or another launcher (mpirun, srun, torchrun) starts one
/// process for each rank. A launcher's flag on the command line counts first, then the variables of another launcher;
/// with neither the program has one rank. With a backend over MPI it is as PerProcess.
/// @ingroup launchers
struct Any {
  static constexpr bool returns_into_user_code = false;
  static constexpr bool also_joins = true;

  static constexpr const char* name() noexcept { return "launch::Any"; }

  /// @returns as PerNode::start() or PerProcess::start(), whichever identity::choose_start() chooses
  /// @pre Threads, Blocking: as PerNode::start()
  static StartResult start(int argc, char** argv, const BackendFacts& backend = {}, Takes takes = Takes::group);
};

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/choose_start.hpp"
#include "dtrain/identity/launchers/variable_tables.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/per_node.hpp"
#include "dtrain/launch/rank_process.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

/// @throws Error (usage)
[[noreturn]] inline void reject_workers(identity::Arguments arguments, const identity::Variables& variables,
                                        std::string_view backend) {
  const std::string_view flag = identity::first_flag(arguments, identity::worker_flags);
  const std::string stated =
      flag.empty() ? variables.stated({"DTRAIN_LAUNCHER", "PET_NNODES", "PET_NODE_RANK"}) : std::string(flag);
  throw_error(Errc::usage, "backend::{} takes its ranks from mpirun or srun: mpirun -n 4 ./train; leave {} out",
              {backend, stated});
}

/// Rank 0 of 1, which says which variables of a node it does not follow.
inline identity::ProcessIdentity alone_on_node(const identity::Variables& variables, std::string_view backend) {
  const identity::Environment nothing;
  identity::ProcessIdentity identity = identity::SingleSource::read(identity::Variables(nothing), {});
  identity.warnings.push_back(format_text(
      "{} describe a node, and backend::{} takes its ranks from mpirun or srun: this is one process",
      {variables.stated({"DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT", "NODE_RANK", "AZUREML_NODE_COUNT", "NNODES"}),
       backend}));
  return identity;
}

}  // namespace detail

DTRAIN_DEFINED StartResult Any::start(int argc, char** argv, const BackendFacts& backend, Takes takes) {
  try {
    identity::Environment environment = identity::snapshot_environment();
    const identity::Arguments arguments(argv, static_cast<std::size_t>(argc));
    if (!launcher_of_wrapped(environment) && !is_worker_environment(environment, ::getppid())) {
      environment = without_outer_job(environment);
    }
    const identity::Variables variables(environment);
    const identity::Start start = identity::choose_start(environment, arguments, backend.needs_process_per_rank);
    if (start == identity::Start::per_node) {
      return PerNode::start(argc, argv, backend);
    }
    if (start == identity::Start::rejected) {
      detail::reject_workers(arguments, variables, backend.name);
    }
    JoinOptions options;
    options.arguments = std::vector<std::string>(argv, argv + argc);
    if (start == identity::Start::alone) {
      options.identity = detail::alone_on_node(variables, backend.name);
    }
    return StartResult(rank_process_of(std::move(options), takes, variables));
  } catch (...) {
    log(LogLevel::error, exception_text());
    return StartResult(exit_code_usage);
  }
}

}  // namespace DTRAIN_NAMESPACE::launch

#endif  // DTRAIN_DEFINITIONS
