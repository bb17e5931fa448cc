#pragma once
/// @file
/// How many cores this process may use.

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The size of the affinity mask, which containers, taskset and batch systems narrow; at least 1.
/// @throws Error (posix) where the system does not tell
inline int cores_by_affinity() {
  for (std::size_t masks = 1;; masks *= 2) {
    const std::size_t bytes = masks * sizeof(cpu_set_t);
    std::vector<unsigned long> words(bytes / sizeof(unsigned long));  // nvcc 13 cannot compile a vector<cpu_set_t>
    cpu_set_t* const set = reinterpret_cast<cpu_set_t*>(words.data());
    if (::sched_getaffinity(0, bytes, set) == 0) {
      const int count = CPU_COUNT_S(bytes, set);
      return count < 1 ? 1 : count;
    }
    if (errno != EINVAL || masks > 64) {  // EINVAL: the machine has more cores than the mask has bits
      throw errno_error("asking which cores this process may use", "give --nproc-per-node a number");
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
