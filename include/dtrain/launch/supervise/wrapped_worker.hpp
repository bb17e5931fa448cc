#pragma once
/// @file
/// Wrapped worker: a worker that the command of --wrap started, not the launcher itself.

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

/// Set in a wrapped worker's environment. The worker unsets it, because its own children are no workers.
inline constexpr const char* wrapped_variable = "DTRAIN_WRAPPED";

/// The launcher's process id from the environment of a wrapped worker; nullopt for other processes. Pure.
inline std::optional<pid_t> launcher_of_wrapped(const identity::Environment& environment) {
  const identity::Variables variables(environment);
  const std::optional<std::string> launcher = variables.text("DTRAIN_LAUNCHER_PROCESS");
  const bool is_wrapped = variables.has(wrapped_variable) && variables.has("DTRAIN_RANK") && launcher;
  return is_wrapped ? std::optional<pid_t>(identity::parse_integer(*launcher)) : std::nullopt;
}

/// The system will kill this process when its parent ends. The parent is the wrapper, which ends with the launcher.
/// Threads: the main thread, before there are others. @throws Error (usage) if no ancestor is the launcher
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
