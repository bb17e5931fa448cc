#pragma once
/// @file
/// block_until(): the wait of FailureLatch, LoopHandle and backends on a condition variable or a deadline.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE {

/// Blocking: until `ready()` holds or the deadline passes. Calls `ready()` with `lock` held. @returns its last result
template <class Ready>
bool block_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
  while (!ready() && !deadline.passed()) {
    // An old libstdc++ converts the instant to the system's clock, where one far away overflows.
    const auto left = std::min<Deadline::Clock::duration>(deadline.remaining(), std::chrono::hours(1));
    if constexpr (DTRAIN_THREAD_SANITIZER != 0) {  // g++ 12's does not know the wait on the steady clock
      changed.wait_until(lock, std::chrono::system_clock::now() + left);
    } else {
      changed.wait_until(lock, Deadline::Clock::now() + left);
    }
  }
  return ready();
}

}  // namespace DTRAIN_NAMESPACE
