#pragma once
/// @file
/// spawn(): starts a worker as a child that dies with the launcher's thread. end_with_parent(): likewise under --wrap.
/// Pipe: both ends.

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/thread.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/cpu_affinity.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/process/open_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A pipe, both ends close-on-exec.
struct Pipe {
  Descriptor reader;
  Descriptor writer;
};

/// @param flags 0, or O_NONBLOCK for both ends
/// @throws Error (posix) if no descriptors are left
inline Pipe make_pipe(int flags = 0) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) {
    throw errno_error("creating a pipe to a worker",
                      "raise the limit of open files (ulimit -n) or start fewer workers");
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Program, environment and descriptors of a child. @pre The descriptors are open until spawn() returns, and above 2;
/// the standard input may be 0, which is this process's own.
struct SpawnRequest {
  std::string executable;
  std::vector<std::string> arguments;  ///< the program's name first
  identity::Environment environment;
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  int inherited = -1;  ///< a further one, which the child has by the same number; -1: none
  sigset_t signal_mask{};
  Cpus cpus;  ///< those that the child may use; empty: all that this process may use
};

/// From now on the system kills this process when the thread that started it ends. If that thread has ended already,
/// this process exits now. An exec of a file with capabilities, or for another user, undoes the setting.
/// @returns 0, or errno
inline int end_with_parent(pid_t parent) noexcept {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    return errno;
  }
  if (::getppid() != parent) {
    ::_exit(128 + SIGKILL);
  }
  return 0;
}

namespace detail {

inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// The step of a start that failed. The child writes it to a pipe. Its text is a literal, so it is at the same address
/// in the parent.
struct StartError {
  const char* call = nullptr;
  int error = 0;  ///< errno
};

/// Gives each signal that has a handler its default action. A signal between the child's unblocking and exec would
/// otherwise run a handler of the parent.
inline void reset_handlers() noexcept {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
      action = {};
      action.sa_handler = SIG_DFL;
      static_cast<void>(::sigaction(signal, &action, nullptr));
    }
  }
}

/// Runs in the child between fork and exec, with async-signal-safe calls only: other threads of the parent may hold
/// locks, also that of the memory allocator. Signals are blocked. @returns the step that failed
inline StartError exec_in_child(const SpawnRequest& request, char* const* arguments, char* const* environment,
                                pid_t parent, const std::optional<rlimit>& files, const CpuSet& cpus) noexcept {
  // A separate process group: Ctrl-C on a terminal reaches the launcher alone, which forwards it once. The launcher can
  // kill the worker and all its descendants in the group.
  if (::setpgid(0, 0) != 0) {
    return {"setpgid", errno};
  }
  if (const int error = end_with_parent(parent); error != 0) {
    return {"prctl(PR_SET_PDEATHSIG)", error};
  }
  const std::pair<int, int> standard[] = {
      {request.standard_input, 0}, {request.standard_output, 1}, {request.standard_error, 2}};
  for (const auto& [from, to] : standard) {
    while (::dup2(from, to) < 0) {
      if (errno != EINTR && errno != EBUSY) {
        return {"dup2", errno};
      }
    }
    // dup2 does not change a descriptor that has its number already. A library that opened 0 may have set FD_CLOEXEC.
    if (from == to && ::fcntl(to, F_SETFD, 0) != 0) {
      return {"fcntl(F_SETFD)", errno};
    }
  }
  if (request.inherited >= 0 && ::fcntl(request.inherited, F_SETFD, 0) != 0) {
    return {"fcntl(F_SETFD)", errno};
  }
  if (files && ::setrlimit(RLIMIT_NOFILE, &*files) != 0) {
    return {"setrlimit", errno};
  }
  // This call fails if the launcher's CPUs have changed since: the child then uses the launcher's. cpu_binding_error()
  // has excluded a system that always denies it.
  if (!request.cpus.empty()) {
    static_cast<void>(::sched_setaffinity(0, sizeof(cpus.words), cpus.words));
  }
  reset_handlers();
  if (::sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr) != 0) {
    return {"sigprocmask", errno};
  }
  ::execve(request.executable.c_str(), arguments, environment);
  return {nullptr, errno};
}

/// The failed step that the child wrote to the pipe; its error is 0 if the child's exec has closed the pipe.
inline StartError start_error(int reader, const std::string& doing) {
  constexpr int start_timeout_ms = 10000;
  for (;;) {
    pollfd waiting{reader, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, start_timeout_ms);
    if (ready == 0) {
      throw_error(Errc::timeout, "{}: it did not start within 10 s; see whether the system is out of memory", {doing});
    }
    StartError error;
    const ssize_t count = ready < 0 ? -1 : ::read(reader, &error, sizeof error);
    if (count >= 0) {
      return count == static_cast<ssize_t>(sizeof error) ? error : StartError{};
    }
    if (errno != EINTR) {
      throw_errno(doing);
    }
  }
}

}  // namespace detail

/// Starts the program and returns its process id. The system kills it when this thread ends, and therefore also when
/// this process ends for any reason. Blocks until the program runs, at most 10 s.
/// Threads: one that exists as long as the child is to run. The process may have other threads.
/// @throws Error (posix) if the start failed; Error (timeout). In both cases no child is left.
inline pid_t spawn(const SpawnRequest& request) {
  const std::string doing = format_text("starting {}", {request.executable});
  std::vector<std::string> arguments = request.arguments;
  std::vector<std::string> environment;
  environment.reserve(request.environment.size());
  for (const auto& [name, value] : request.environment) {
    environment.push_back(format_text("{}={}", {name, value}));
  }
  const std::vector<char*> argument_pointers = detail::pointers_to(arguments);
  const std::vector<char*> environment_pointers = detail::pointers_to(environment);
  Pipe report = make_pipe();
  const std::optional<rlimit> files = open_files_for_children();
  const CpuSet cpus(request.cpus);
  const pid_t parent = ::getpid();
  pid_t child = -1;
  {
    const async::BlockedSignals blocked;  // signals are blocked in the child as well
    child = ::fork();
    if (child == 0) {
      const detail::StartError failed =
          detail::exec_in_child(request, argument_pointers.data(), environment_pointers.data(), parent, files, cpus);
      const ssize_t written = ::write(report.writer.get(), &failed, sizeof failed);
      static_cast<void>(written);
      ::_exit(127);
    }
  }
  if (child < 0) {
    throw_errno("{}", {doing}, "raise the limit of processes (ulimit -u) or start fewer workers");
  }
  static_cast<void>(::setpgid(child, child));  // the child also calls it: either may be first
  report.writer.reset();
  try {
    const detail::StartError failed = detail::start_error(report.reader.get(), doing);
    if (failed.error != 0) {
      throw_posix(failed.error, failed.call == nullptr ? doing : format_text("{}: {}", {doing, failed.call}));
    }
  } catch (...) {
    static_cast<void>(::kill(child, SIGKILL));
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    throw;
  }
  return child;
}

}  // namespace DTRAIN_NAMESPACE::launch
