#pragma once
/// @file
/// Process setup of a launcher or worker: one thread, open standard descriptors, signals, subreaper, end with others.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/configuration/worker_environment.hpp"
#include "dtrain/launch/supervise/process_tree.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Number of threads of this process. @throws Error (posix) if /proc cannot be read
inline std::size_t thread_count() {
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) {
    throw errno_error("counting the threads of this process in /proc/self/task", "mount /proc");
  }
  std::size_t count = 0;
  while (const dirent* entry = ::readdir(tasks)) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  static_cast<void>(::closedir(tasks));  // read only: an error loses no data
  return count;
}

/// Checks that the launcher has one thread. Workers end with the thread that started them, and fork copies locks that
/// other threads hold. MPI and CUDA start threads when they are initialised. @throws Error (usage)
inline void require_single_thread() {
  constexpr std::size_t expected = DTRAIN_THREAD_SANITIZER ? 2 : 1;  // the sanitizer has its own thread
  const std::size_t count = thread_count();
  if (count > expected || ::gettid() != ::getpid()) {
    throw_error(Errc::usage,
                "this process has {} threads already; make dtrain::run the first statement of main, before anything "
                "that starts threads, MPI or CUDA",
                {count});
  }
}

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

/// Makes this process the parent of workers' orphans, so that it can reap them, also as PID 1 of a container.
inline void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    throw_errno("becoming the subreaper of what the workers leave behind");
  }
}

/// The system will kill this process when its parent ends. The parent is the wrapper, which ends with the launcher.
/// Threads: the main thread, before there are others. @throws Error (usage) if no ancestor is the launcher
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
