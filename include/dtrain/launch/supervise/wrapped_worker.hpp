#pragma once
/// @file
/// A worker that the command of --wrap started, and not the launcher itself.

#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/launch/supervise/process_tree.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Set for a wrapped worker, which takes it out of its environment: what it starts in turn is not that worker.
inline constexpr const char* wrapped_variable = "DTRAIN_WRAPPED";

/// The process id of the launcher whose wrapped worker has this environment; nothing for any other process. Pure.
inline std::optional<pid_t> launcher_of_wrapped(const identity::Environment& environment) {
  const identity::Variables variables(environment);
  const std::optional<std::string> launcher = variables.text("DTRAIN_LAUNCHER_PROCESS");
  const bool is_wrapped = variables.has(wrapped_variable) && variables.has("DTRAIN_RANK") && launcher;
  return is_wrapped ? std::optional<pid_t>(identity::parse_integer(*launcher)) : std::nullopt;
}

/// Makes this process end with the wrapper, which ends with the launcher: the system signals a process at its parent's
/// end only. Threads: the main thread, before there are others. @throws Error (usage) where the launcher has gone
inline void end_with_launcher(pid_t launcher) {
  if (::unsetenv(wrapped_variable) != 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    throw errno_error("making this worker end with the command of --wrap");
  }
  if (!has_ancestor(launcher)) {
    throw Error(Errc::usage,
                "process " + std::to_string(launcher) +
                    ", the launcher of this worker, is none of its ancestors: it has ended, or the command "
                    "of --wrap does not stay the parent of what it starts; wrap in one that does");
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
