#pragma once
/// @file
/// Which descriptors can be waited for, and whether one is ready now.

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Pipes, sockets and terminals. A regular file or /dev/null is refused by epoll, and never makes its user wait.
inline bool can_be_waited_for(int descriptor) noexcept {
  struct ::stat status {};
  if (::fstat(descriptor, &status) != 0) {
    return false;
  }
  return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || ::isatty(descriptor) == 1;
}

/// Whether a read would return at once with bytes. Blocking: no.
inline bool has_input(int descriptor) noexcept {
  pollfd asked{descriptor, POLLIN, 0};
  return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLIN) != 0;
}

/// Whether a write, of at most PIPE_BUF bytes to a pipe, would return at once, be it with an error. Blocking: no.
inline bool takes_output(int descriptor) noexcept {
  pollfd asked{descriptor, POLLOUT, 0};
  return ::poll(&asked, 1, 0) == 1;
}

}  // namespace DTRAIN_NAMESPACE::launch
