#pragma once
/// @file
/// Lost output: message about a standard stream after a write error.

#include <unistd.h>

#include <string>
#include <system_error>

#include "dtrain/core/sanitize.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// "stdout ('/dev/full')": a descriptor of this process, with the name of its file if it has one.
inline std::string stream_name(const std::string& name, int descriptor) {
  std::string target(4096, '\0');
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  target.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  if (target.empty() || target.front() != '/') {
    return name + (target.substr(0, 5) == "pipe:" ? " (a pipe)" : "");
  }
  return name + " (" + in_quotes(target, 256) + ")";
}

/// "stdout (a pipe) takes nothing more: Broken pipe; ..." @param error an errno
inline std::string lost_output(const std::string& name, int descriptor, int error) {
  return stream_name(name, descriptor) + " takes nothing more: " + std::generic_category().message(error) +
         "; the job goes on, and what the ranks print there is lost from here on (--log-dir=DIR keeps it in files)";
}

}  // namespace DTRAIN_NAMESPACE::launch
