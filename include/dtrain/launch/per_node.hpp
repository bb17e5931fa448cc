#pragma once
/// @file
/// launch::PerNode: the process that the user starts becomes the launcher of this node's workers.

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/log.hpp"
#include "dtrain/identity/environment.hpp"
#include "dtrain/launch/cores.hpp"
#include "dtrain/launch/flags.hpp"
#include "dtrain/launch/help.hpp"
#include "dtrain/launch/node_job.hpp"
#include "dtrain/launch/own_process.hpp"
#include "dtrain/launch/settings.hpp"
#include "dtrain/launch/worker.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

inline constexpr int most_workers = 4096;

/// How many workers --nproc-per-node asks for; 1 where it is not given. @throws Error (usage)
inline int worker_count(const std::optional<std::string>& given, int cores) {
  if (!given) {
    return 1;
  }
  if (*given == "auto") {
    return cores;
  }
  const int count = identity::parse_integer(*given).value_or(0);
  if (count < 1 || count > most_workers) {
    throw Error(Errc::usage, identity::quoted("--nproc-per-node", *given) + " is not a number of workers from 1 to " +
                                 std::to_string(most_workers) + ", or auto");
  }
  return count;
}

/// What `flags` in `environment` ask for. @throws Error (usage, identity)
inline NodeJobOptions node_job_options(Flags flags, const identity::Environment& environment) {
  const identity::NodeIdentity node = identity::node_identity(environment, flags.node);
  if (node.node_count != 1) {
    throw Error(Errc::usage, "this job has " + std::to_string(node.node_count) + " nodes (from [" + node.launcher +
                                 "]), and this version of launch::PerNode runs on one; give --nnodes=1, or start one "
                                 "process for each rank with launch::PerProcess");
  }
  const identity::Variables variables(environment);
  NodeJobOptions options;
  check_log_setting(variables);
  options.program.arguments = std::move(flags.program);
  options.program.environment = environment;
  options.program.log_dir = std::move(flags.log_dir);
  options.cores = cores_by_affinity();
  options.workers = worker_count(node.nproc_per_node, options.cores);
  options.port = static_cast<std::uint16_t>(node.master_port.value_or(0));
  options.max_restarts = flags.max_restarts;
  options.stop_grace = seconds_setting(variables, "DTRAIN_GRACE_SECONDS", StopPlan::default_stop_grace);
  options.formation = seconds_setting(variables, "DTRAIN_TIMEOUT_SECONDS", default_timeout);
  options.liveness = seconds_setting(variables, "DTRAIN_LIVENESS_SECONDS", default_liveness);
  options.host_id = variables.text("DTRAIN_HOST_ID");
  return options;
}

}  // namespace detail

/// `./train --nproc-per-node=4`: starts four of /proc/self/exe, each a rank, and ends with them. The store runs in the
/// launcher, so it survives rank 0.
struct PerNode {
  static constexpr bool returns_into_user_code = false;

  static constexpr const char* name() noexcept { return "launch::PerNode"; }

  /// In a worker, the Worker; in the launcher, the first failing worker's exit code (128 + signal), 0, or 2 with a
  /// sentence on stderr where nothing could be started. To be main's first statement.
  /// Blocking: in the launcher, until all workers have ended. Threads: the main thread, of a process that has no other.
  static Start start(int argc, char** argv) {
    try {
      const identity::Environment environment = identity::snapshot_environment();
      if (is_worker_environment(environment, ::getppid())) {
        // Its stdout is a pipe, but people read it: a line goes out when it is complete, also before a crash.
        static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 0));
        return Start(worker_of_launcher(environment, std::vector<std::string>(argv, argv + argc)));
      }
      require_single_thread();
      Flags flags = parse_flags(identity::Arguments(argv, static_cast<std::size_t>(argc)));
      if (flags.help) {
        return Start(std::fputs(help_text, stdout) < 0 || std::fflush(stdout) != 0 ? 1 : 0);
      }
      NodeJobOptions options = detail::node_job_options(std::move(flags), without_outer_job(environment));
      open_standard_descriptors();
      adopt_orphans();
      NodeJob job(std::move(options));
      return Start(job.run());
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
      return Start(2);
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::launch
