#pragma once
/// @file
/// What launch::PerNode does.

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
#include "dtrain/launch/per_node.hpp"
#include "dtrain/launch/worker.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::launch {

DTRAIN_DEFINED Start PerNode::start(int argc, char** argv, VisibleDevices visible_devices) {
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

}  // namespace DTRAIN_NAMESPACE::launch
