#pragma once
/// @file
/// AbandonedThreads: threads that wait in NCCL for other ranks and are not joined.

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Counts them. If one is left when the process ends, the process ends as by _exit, with its <cstdio> streams flushed:
/// other exit handlers would unload CUDA while NCCL uses it. Threads: any.
class AbandonedThreads {
 public:
  static int count() noexcept { return count_.load(); }

  static void add() noexcept {
    if (!is_registered_.exchange(true)) {
      static_cast<void>(::on_exit(end_process, nullptr));  // if this fails, the process ends as others do
    }
    count_.fetch_add(1);
  }
  static void remove() noexcept { count_.fetch_sub(1); }

 private:
  static void end_process(int status, void*) noexcept {
    if (count() != 0) {
      std::fflush(nullptr);
      ::_exit(status);
    }
  }

  static inline std::atomic<int> count_{0};
  static inline std::atomic<bool> is_registered_{false};
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
