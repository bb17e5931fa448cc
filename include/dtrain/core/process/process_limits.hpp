#pragma once
/// @file
/// limit_hint(): names the limit of this process (ulimit) that may have caused an error.

#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Text to append to an error of the system: this process's limit that may have caused it, such as
/// "; the address space of this process is limited to 4096000 bytes (ulimit -v)"; empty if there is none.
std::string limit_hint(int error);

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <sys/resource.h>

#include <cerrno>

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED std::string limit_hint(int error) {
  const bool memory = error == ENOMEM;
  rlimit limit{};
  if ((!memory && error != EFBIG) || ::getrlimit(memory ? RLIMIT_AS : RLIMIT_FSIZE, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return std::string("; ") + (memory ? "the address space of this process is" : "files that this process writes are") +
         " limited to " + std::to_string(limit.rlim_cur) + " bytes (ulimit " + (memory ? "-v)" : "-f)");
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
