#pragma once
/// @file
/// Preconditions of a process that becomes a launcher.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// How many threads this process has. @throws Error (posix) where /proc does not tell
inline std::size_t thread_count() {
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) {
    throw errno_error("counting the threads of this process in /proc/self/task", "mount /proc");
  }
  std::size_t count = 0;
  while (const dirent* entry = ::readdir(tasks)) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  static_cast<void>(::closedir(tasks));  // read only: nothing can be lost
  return count;
}

/// Workers die with the thread that started them, and a fork copies locks that other threads hold: so the launcher has
/// one thread. MPI and CUDA, once initialised, have some. @throws Error (usage)
inline void require_single_thread() {
  constexpr std::size_t expected = DTRAIN_THREAD_SANITIZER ? 2 : 1;  // the sanitizer has one of its own
  const std::size_t count = thread_count();
  if (count > expected || ::gettid() != ::getpid()) {
    throw Error(Errc::usage, "this process has " + std::to_string(count) +
                                 " threads already; make dtrain::run the first statement of main, before anything that "
                                 "starts threads, MPI or CUDA");
  }
}

/// Opens /dev/null as each of stdin, stdout and stderr that is closed, so that no pipe or socket takes its number, and
/// with it what the program prints.
inline void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != descriptor) {
      throw errno_error("opening /dev/null in the place of a closed standard descriptor");
    }
  }
}

/// A file of the launcher's that would grow beyond its limit (ulimit -f) is an error, and does not end the job. Workers
/// have the system's default again: an exec takes handlers away.
inline void survive_file_size_limit() {
  struct sigaction present {};
  if (::sigaction(SIGXFSZ, nullptr, &present) != 0) {
    throw errno_error("asking what SIGXFSZ does");
  }
  if (present.sa_handler == SIG_DFL) {
    present.sa_handler = [](int) {};
    present.sa_flags = SA_RESTART;
    if (::sigaction(SIGXFSZ, &present, nullptr) != 0) {
      throw errno_error("handling SIGXFSZ");
    }
  }
}

/// What a worker leaves behind becomes this process's child, so that it can be reaped, also as PID 1 of a container.
inline void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    throw errno_error("becoming the subreaper of what the workers leave behind");
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
