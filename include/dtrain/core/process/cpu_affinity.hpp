#pragma once
/// @file
/// CPU affinity: the CPUs on which the system may run this thread, and whether threads can be bound.

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Numbers of logical CPUs, as the kernel counts them; sorted.
using Cpus = std::vector<int>;

/// The form in which the system takes and gives a set of CPUs: 8192 of them, the most that Linux can be built for. It
/// rejects a set smaller than its own.
struct CpuSet {
  static constexpr int most_cpus = 8 * CPU_SETSIZE;

  CpuSet() noexcept = default;
  /// @pre numbers below most_cpus
  explicit CpuSet(const Cpus& cpus) noexcept {
    for (const int cpu : cpus) {
      CPU_SET_S(static_cast<std::size_t>(cpu), sizeof(words), words);
    }
  }

  cpu_set_t words[8]{};
};

/// The CPUs that the calling thread may use; empty if the system does not say.
inline Cpus allowed_cpus() {
  CpuSet allowed;
  Cpus cpus;
  if (::sched_getaffinity(0, sizeof(allowed.words), allowed.words) == 0) {
    for (int cpu = 0; cpu < CpuSet::most_cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), sizeof(allowed.words), allowed.words)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

/// Why the system rejects bindings of this process's threads to CPUs, as the policy of a container may (seccomp).
/// @returns 0, or errno. Changes nothing: no thread can run on no CPU, so a system without such a policy answers EINVAL
inline int cpu_binding_error() noexcept {
  const CpuSet none;
  return ::sched_setaffinity(0, sizeof(none.words), none.words) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace DTRAIN_NAMESPACE
