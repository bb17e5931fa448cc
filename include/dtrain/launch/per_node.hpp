#pragma once
/// @file
/// launch::PerNode: the process that the user starts becomes the launcher of this node's workers.

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/exit_codes.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/identity/environment.hpp"
#include "dtrain/launch/flags.hpp"
#include "dtrain/launch/help.hpp"
#include "dtrain/launch/job_options.hpp"
#include "dtrain/launch/node_job.hpp"
#include "dtrain/launch/own_process.hpp"
#include "dtrain/launch/worker.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// `./train --nproc-per-node=4`: starts four of /proc/self/exe, each a rank, and ends with them. Started once on each
/// of several nodes (--nnodes, --node-rank, --master-addr), it is one job. The store runs in the launcher (of node 0),
/// so it survives rank 0.
struct PerNode {
  static constexpr bool returns_into_user_code = false;

  static constexpr const char* name() noexcept { return "launch::PerNode"; }

  /// In a worker, the Worker; in the launcher, the first failing worker's exit code (128 + signal), 0, or 2 with a
  /// sentence on stderr where nothing could be started. To be main's first statement.
  /// @param visible_devices counts the devices that --nproc-per-node=auto starts a worker for each of; null: the cores
  /// Blocking: in the launcher, until all workers have ended. Threads: the main thread, of a process that has no other.
  static Start start(int argc, char** argv, VisibleDevices visible_devices = nullptr) {
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
      NodeJobOptions options = node_job_options(std::move(flags), without_outer_job(environment),
                                                stream::host::cores_by_affinity(), visible_devices);
      open_standard_descriptors();
      adopt_orphans();
      NodeJob job(std::move(options));
      return Start(job.run());
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
      return Start(exit_code_usage);
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::launch
