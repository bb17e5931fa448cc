#pragma once
/// @file
/// limit_hint(): names the limit of this process (ulimit) that may have caused an error.

#include <sys/resource.h>

#include <cerrno>
#include <string>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// "; the address space of this process is limited to 4096000 bytes (ulimit -v)", or nothing without a limit.
template <class Resource>
std::string limit_text(Resource resource, const char* what, const char* option) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return std::string("; ") + what + " limited to " + std::to_string(limit.rlim_cur) + " bytes (ulimit " + option + ")";
}

}  // namespace detail

/// Text to append to an error of the system: this process's limit that may have caused it; empty if there is none.
inline std::string limit_hint(int error) {
  if (error == ENOMEM) {
    return detail::limit_text(RLIMIT_AS, "the address space of this process is", "-v");
  }
  if (error == EFBIG) {
    return detail::limit_text(RLIMIT_FSIZE, "files that this process writes are", "-f");
  }
  return "";
}

}  // namespace DTRAIN_NAMESPACE
