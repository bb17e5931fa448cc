#pragma once
/// @file
/// A part of a test in a child process that may open few files.

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <string>

namespace support {

/// What `body()` gives, or what it throws, in a child with these limits of open files. Its stderr goes before that.
template <class Body>
std::string with_open_files(rlim_t soft, rlim_t hard, Body body) {
  int ends[2] = {-1, -1};
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(ends[0]);
    static_cast<void>(::alarm(100));
    const rlimit limit{soft, hard};
    std::string text = "the limit could not be set";
    if (::dup2(ends[1], STDERR_FILENO) == STDERR_FILENO && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) {
      try {
        text = body();
      } catch (const std::exception& error) {
        text = std::string("threw ") + error.what();
      }
    }
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(count));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  return said;
}

}  // namespace support
