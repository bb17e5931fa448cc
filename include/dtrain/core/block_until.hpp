#pragma once
/// @file
/// block_until(): waits on a condition variable until a deadline, in a form that ThreadSanitizer supports.

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
    if constexpr (DTRAIN_THREAD_SANITIZER != 0) {  // g++ 12's does not know the wait on the steady clock
      changed.wait_until(lock, std::chrono::system_clock::now() + deadline.remaining());
    } else {
      changed.wait_until(lock, deadline.instant());
    }
  }
  return ready();
}

}  // namespace DTRAIN_NAMESPACE
