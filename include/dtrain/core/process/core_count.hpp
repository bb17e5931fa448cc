#pragma once
/// @file
/// Number of cores that this thread or process may use, or all ranks of its host (cores_of_all_ranks()).

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// Number of cores that the calling thread may use by its affinity. If the system cannot answer, those online.
int cores_by_affinity();

/// cores_by_affinity(), at most the CPU quota of this process's control groups. Reads some small files.
int available_cores();

/// Number of cores that the ranks of this host may use together. A launcher that binds ranks to cores states the number
/// in DTRAIN_NODE_CORES; else available_cores().
int cores_of_all_ranks();

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/process/cpu_affinity.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED int cores_by_affinity() {
  CpuSet allowed;
  long cores = 0;
  if (::sched_getaffinity(0, sizeof(allowed.words), allowed.words) == 0) {
    cores = CPU_COUNT_S(sizeof(allowed.words), allowed.words);
  } else {
    cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  }
  return std::max(1, static_cast<int>(cores));
}

DTRAIN_DEFINED int available_cores() {
  const int most = cores_by_affinity();
  return std::min(most, cpu_quota().value_or(most));
}

DTRAIN_DEFINED int cores_of_all_ranks() {
  const char* const given = std::getenv("DTRAIN_NODE_CORES");
  int cores = 0;
  if (given != nullptr) {
    const char* const end = given + std::strlen(given);
    const auto [read, error] = std::from_chars(given, end, cores);
    cores = read == end && error == std::errc{} ? cores : 0;
  }
  return std::max(cores, available_cores());
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
