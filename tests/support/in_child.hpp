#pragma once
/// @file
/// A part of a test in a forked process.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace support {

/// The exit code of a forked process that does `act`, which gives it; 128 + the signal that ended the process: SIGALRM
/// after 100 s.
template <class Act>
int in_child(Act act) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    static_cast<void>(::alarm(100));
    ::_exit(act());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace support
