#pragma once
/// @file
/// Runs a program and reads what it prints.

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"

namespace bench {

/// The file that this program was started from. @throws Error (posix)
inline std::string own_path() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) {
    throw dtrain::errno_error("reading the name of this program");
  }
  path.resize(static_cast<std::size_t>(length));
  return path;
}

struct CommandOutput {
  dtrain::Deadline::Clock::time_point begin;  ///< when it was started
  std::string text;                           ///< of its stdout
  bool succeeded = false;                     ///< exit code 0 before the deadline
  double processor_seconds = 0;               ///< of it and of the processes that it waited for
  std::uint64_t peak_bytes = 0;               ///< of memory, of the largest of them
};

/// Blocking: until it has closed its stdout and ended; at the deadline it is killed. Its stderr is this program's, or
/// nobody's where it is `quiet`. Threads: as ChildProcess.
inline CommandOutput run_command(std::vector<std::string> arguments, dtrain::Deadline deadline, bool quiet = false) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw dtrain::errno_error("making a pipe for " + arguments.front());
  }
  const dtrain::Descriptor reading(ends[0]);
  dtrain::Descriptor writing(ends[1]);
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  CommandOutput output;
  output.begin = dtrain::Deadline::Clock::now();
  const pid_t process = ::fork();
  if (process < 0) {
    throw dtrain::errno_error("starting " + arguments.front());
  }
  if (process == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup2(null, STDIN_FILENO);
    ::dup2(writing.get(), STDOUT_FILENO);
    if (quiet) {
      ::dup2(null, STDERR_FILENO);
    }
    ::execvp(argv.front(), argv.data());
    ::_exit(127);
  }
  writing.reset();
  bool late = false;
  for (;;) {
    pollfd readable{reading.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
    const int ready = ::poll(&readable, 1, static_cast<int>(left));
    std::array<char, 4096> buffer;
    const ssize_t count = ready == 1 ? ::read(reading.get(), buffer.data(), buffer.size()) : ready;
    late = ready == 0;
    if (count > 0) {
      output.text.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      break;
    }
  }
  if (late) {
    ::kill(process, SIGKILL);
  }
  int status = 0;
  rusage usage{};
  while (::wait4(process, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  output.processor_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  output.peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  output.succeeded = !late && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return output;
}

}  // namespace bench
