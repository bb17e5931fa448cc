#pragma once
/// @file
/// FirstCause: the cause of a channel's failure, set once. report_quietly(): its report to the job, which never throws.

#include <atomic>
#include <mutex>
#include <optional>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/failure_latch.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A copy, without the texts if memory is exhausted.
inline Cause copy_of(const Cause& cause) noexcept {
  try {
    return cause;
  } catch (...) {
    return Cause{cause.kind, cause.rank, {}, {}};
  }
}

/// Reports to the job. If that throws, failure() of the channel still has the cause.
inline void report_quietly(FailureLatch& job, const Cause& cause) noexcept {
  try {
    job.report(cause);
  } catch (...) {
    // ignored: see above
  }
}

/// Threads: any, for all members.
class FirstCause {
 public:
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }

  /// For waits that poll it, and for a seq_cst order with other atomics.
  const std::atomic<bool>& flag() const noexcept { return set_; }

  std::optional<Cause> get() const {
    if (!is_set()) {
      return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// Calls `publish()` before any thread can read the cause. @returns false if a cause was set before
  template <class Publish>
  bool set(const Cause& cause, Publish publish) noexcept {
    const std::lock_guard lock(mutex_);
    if (cause_) {
      return false;
    }
    cause_ = copy_of(cause);
    publish();
    set_.store(true);  // the lock is held: when another set() returns false, is_set() is true
    return true;
  }
  bool set(const Cause& cause) noexcept {
    return set(cause, [] {});
  }

 private:
  std::atomic<bool> set_{false};
  mutable std::mutex mutex_;
  std::optional<Cause> cause_;
};

}  // namespace DTRAIN_NAMESPACE::backend
