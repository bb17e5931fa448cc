#pragma once
/// @file
/// Pollable descriptors: whether epoll accepts a descriptor, and whether it is ready now.

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// True for pipes, sockets and terminals. epoll rejects regular files and /dev/null, which are always ready.
inline bool can_be_waited_for(int descriptor) noexcept {
  struct ::stat status {};
  if (::fstat(descriptor, &status) != 0) {
    return false;
  }
  return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || ::isatty(descriptor) == 1;
}

/// Whether a read would return bytes without blocking. Blocking: no.
inline bool has_input(int descriptor) noexcept {
  pollfd asked{descriptor, POLLIN, 0};
  return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLIN) != 0;
}

/// Whether a write (to a pipe: of at most PIPE_BUF bytes) would return without blocking, also with an error.
/// Blocking: no.
inline bool takes_output(int descriptor) noexcept {
  pollfd asked{descriptor, POLLOUT, 0};
  return ::poll(&asked, 1, 0) == 1;
}

}  // namespace DTRAIN_NAMESPACE::launch
