#pragma once
/// @file
/// Standard streams of a launcher or rank: whether they are ready, or lost. stream_name(): with its file.

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <system_error>

#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
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

/// "stdout ('/dev/full')": a descriptor of this process, with the name of its file if the descriptor has one.
inline std::string stream_name(const std::string& name, int descriptor) {
  const std::string target = link_target(format_text("/proc/self/fd/{}", {descriptor}));
  if (target.empty() || target.front() != '/') {
    return name + (target.substr(0, 5) == "pipe:" ? " (a pipe)" : "");
  }
  return format_text("{} ({})", {name, in_quotes(target, 256)});
}

/// "cannot write to stdout (a pipe): Broken pipe; ..." @param error an errno
inline std::string lost_output(const std::string& name, int descriptor, int error) {
  return format_text(
      "cannot write to {}: {}; the job goes on, and what the ranks print there is lost from here on (--log-dir=DIR "
      "keeps it in files)",
      {stream_name(name, descriptor), std::generic_category().message(error)});
}

}  // namespace DTRAIN_NAMESPACE::launch
