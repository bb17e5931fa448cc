#pragma once
/// @file
/// What the system says of this process: its memory, its limit of open files.

#include <sys/resource.h>

#include <cstdint>
#include <cstdio>

#include "dtrain/core/error.hpp"

namespace bench {

/// VmRSS of /proc/self/status. @throws Error (posix)
inline std::uint64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) {
    throw dtrain::errno_error("reading /proc/self/status");
  }
  unsigned long long kibibytes = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr && std::sscanf(line, "VmRSS: %llu", &kibibytes) != 1) {
  }
  std::fclose(file);
  return std::uint64_t{kibibytes} << 10;
}

/// Raises the limit of open files as far as it goes without privileges. @returns how many may be open now
inline std::uint64_t raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    throw dtrain::errno_error("asking for the limit of open files");
  }
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    throw dtrain::errno_error("raising the limit of open files");
  }
  return limit.rlim_cur;
}

}  // namespace bench
