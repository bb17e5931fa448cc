#pragma once
/// @file
/// Process setup of a launcher or worker: open standard descriptors, signals, subreaper, end with others.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/configuration/worker_environment.hpp"
#include "dtrain/launch/supervise/process_tree.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Opens /dev/null as each of stdin, stdout and stderr that is closed. Otherwise a pipe or socket could get its number,
/// and then receive the program's output.
inline void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != descriptor) {
      throw_errno("opening /dev/null in the place of a closed standard descriptor");
    }
  }
}

/// Installs a handler for SIGXFSZ: a launcher's file at its limit (ulimit -f) is then a write error and does not end
/// the job. Workers get the system's default, because exec resets handlers.
inline void survive_file_size_limit() {
  struct sigaction present {};
  if (::sigaction(SIGXFSZ, nullptr, &present) != 0) {
    throw_errno("asking what SIGXFSZ does");
  }
  if (present.sa_handler == SIG_DFL) {
    present.sa_handler = [](int) {};
    present.sa_flags = SA_RESTART;
    if (::sigaction(SIGXFSZ, &present, nullptr) != 0) {
      throw_errno("handling SIGXFSZ");
    }
  }
}

/// Makes this process the parent of workers' orphans, so that it can reap them. If the system refuses, a process that a
/// worker leaves behind becomes a child of init, which reaps it; it is killed with the worker's group all the same.
inline void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    log(LogLevel::info, errno_error("becoming the subreaper of what the workers leave behind").what());
  }
}

/// The system will kill this process when its parent ends. The parent is the wrapper, which ends with the launcher.
/// Threads: any. A thread of a library that reads the environment meanwhile may miss a variable: glibc's unsetenv moves
/// the others, and frees nothing. @throws Error (usage) if no ancestor is the launcher
inline void end_with_launcher(pid_t launcher) {
  if (::unsetenv(wrapped_variable) != 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    throw_errno("making this worker end with the command of --wrap");
  }
  if (!has_ancestor(launcher)) {
    throw_error(Errc::usage,
                "process {}, the launcher of this worker, is none of its ancestors: it has ended, or the command of "
                "--wrap does not stay the parent of what it starts; wrap in one that does",
                {launcher});
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
