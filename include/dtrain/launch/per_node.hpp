#pragma once
/// @file
/// launch::PerNode: launcher of a Policy: the process started by the user starts its node's workers.

#include "dtrain/core/config.hpp"
#include "dtrain/core/process/core_count.hpp"
#include "dtrain/launch/launcher.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The program is started once on each node. `./train --nproc-per-node=4` starts its own program four times, each as a
/// rank, and ends when they have ended. For a job on several nodes, the user starts it once on each (--nnodes,
/// --node-rank, --master-addr). The store runs in the launcher of node 0, so it outlives rank 0. With --in-process
/// there is no launcher: the process is rank 0 of 1.
/// @ingroup launchers
struct PerNode {
  static constexpr bool returns_into_user_code = false;

  static constexpr const char* name() noexcept { return "launch::PerNode"; }

  /// @returns in a worker, its RankProcess; in the launcher, an exit code:
  ///   - 0, or the code of the worker that failed first (128 + signal number for a signal)
  ///   - 2, with a sentence on stderr, if no worker could be started
  ///   - 2 as well if MPI is initialised in this process, or CUDA has a context in it
  /// @pre It is main's first statement. Threads: usually the main thread. Other threads may run, as those that a
  /// library starts when it is loaded (OpenBLAS).
  /// Blocking: in the launcher, until all workers have ended.
  /// @param backend its devices, or the cores, are counted for --nproc-per-node=auto; it limits the number of workers
  static StartResult start(int argc, char** argv, const BackendFacts& backend = {});
};

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/configuration/core_binding.hpp"
#include "dtrain/launch/configuration/flags.hpp"
#include "dtrain/launch/configuration/known_variables.hpp"
#include "dtrain/launch/configuration/node_launcher_options.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/node_launcher.hpp"
#include "dtrain/launch/output/standard_stream.hpp"
#include "dtrain/launch/rank_process.hpp"
#include "dtrain/launch/status_query.hpp"
#include "dtrain/launch/supervise/process_setup.hpp"
#include "dtrain/launch/supervise/spawn.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// One line at DTRAIN_LOG=info.
DTRAIN_DEFINED void log_binding(const std::vector<Cpus>& cpus, bool by_gpu) {
  if (cpus.empty()) {
    if (by_gpu) {
      log(LogLevel::info, "workers are not bound to CPUs: the NUMA node of each worker's GPU is not known");
    }
    return;
  }
  std::string text = "workers are bound to CPUs";
  for (std::size_t worker = 0; worker < cpus.size(); ++worker) {
    append_text(text, "{} {}: {}", {worker == 0 ? "" : ";", worker, text_of(cpus[worker])});
  }
  log(LogLevel::info, text + " (--bind=none binds none)");
}

DTRAIN_DEFINED StartResult PerNode::start(int argc, char** argv, const BackendFacts& backend) {
  try {
    const identity::Environment environment = identity::snapshot_environment();
    std::vector<std::string> arguments(argv, argv + argc);
    const std::optional<pid_t> launcher = launcher_of_wrapped(environment);
    const pid_t parent = ::getppid();
    const bool is_worker = launcher || is_worker_environment(environment, parent);
    if (launcher) {
      end_with_launcher(*launcher, is_elastic_worker(identity::Variables(environment)));
    } else if (const int error = is_worker ? end_with_parent(parent) : 0; error != 0) {
      throw_posix(error, "making this worker end with its launcher");  // exec may have reset it: see end_with_parent()
    }
    if (is_worker) {
      // stdout is a pipe that users read: with line buffering users read each complete line, also before a crash.
      static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 0));
      return StartResult(rank_process_of_launcher(identity::Variables(environment), std::move(arguments)));
    }
    Flags flags = parse_flags(identity::Arguments(argv, static_cast<std::size_t>(argc)));
    if (flags.help) {
      const std::string page = help_text(arguments.empty() ? "" : arguments.front());
      if (std::fputs(page.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
        const Error lost =
            errno_error(format_text("printing the launcher's flags on {}", {stream_name("stdout", STDOUT_FILENO)}));
        log(LogLevel::error, lost.what());
        return StartResult(exit_code_exception);
      }
      return StartResult(0);
    }
    if (flags.status) return StartResult(print_statuses(flags.status_process));
    if (flags.in_process) {
      return StartResult(rank_process_alone(identity::Variables(environment), std::move(flags.program)));
    }
    refuse_initialised_runtimes();
    NodeLauncherOptions options = reading_variables(environment, [&] {
      return node_launcher_options(std::move(flags), without_outer_job(environment), available_cores(),
                                   backend.visible_devices, &backend);
    });
    if (options.node.node_rank == 0) {
      warn_of_unknown_variables(environment);
    }
    check_most_workers(options.workers, backend);
    check_min_ranks(options, backend);
    const bool by_gpu = backend.visible_devices != nullptr && options.binding == Binding::automatic;
    options.program.cpus =
        by_gpu ? cpus_by_gpu(options.workers, allowed_cpus(), identity::Variables(environment), backend.visible_devices)
               : cpus_of_workers(options.binding, options.workers, allowed_cpus());
    if (const std::string refused = drop_refused_binding(options.program.cpus, options.binding, cpu_binding_error());
        refused.empty()) {
      log_binding(options.program.cpus, by_gpu);
    } else {
      log(LogLevel::info, refused);
    }
    survive_file_size_limit();
    options.program.loader = own_loader(arguments);
    if (!options.program.wrapper.empty()) {
      options.program.wrapper.front() = wrapper_path(options.program.wrapper.front(), environment);
    }
    open_standard_descriptors();
    become_subreaper();
    NodeLauncher node_launcher(std::move(options));
    return StartResult(node_launcher.run());
  } catch (...) {
    log(LogLevel::error, exception_text());
    return StartResult(exit_code_usage);
  }
}

}  // namespace DTRAIN_NAMESPACE::launch

#endif  // DTRAIN_DEFINITIONS
