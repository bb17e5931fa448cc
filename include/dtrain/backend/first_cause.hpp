#pragma once
/// @file
/// The cause for which a channel went out of service: the first one stays.

#include <atomic>
#include <mutex>
#include <optional>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/failure_latch.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A copy, without its texts where there is no memory for them.
inline Cause copy_of(const Cause& cause) noexcept {
  try {
    return cause;
  } catch (...) {
    return Cause{cause.kind, cause.rank, {}, {}};
  }
}

/// Reports to the job; where that fails, failure() of the channel still has the cause.
inline void report_quietly(FailureLatch& job, const Cause& cause) noexcept {
  try {
    job.report(cause);
  } catch (...) {
    // The channel's failure() has it.
  }
}

/// Threads: all members from any.
class FirstCause {
 public:
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }

  /// For a wait that looks at it, and for an order with other words that are seq_cst as well.
  const std::atomic<bool>& flag() const noexcept { return set_; }

  std::optional<Cause> get() const {
    if (!is_set()) {
      return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// `publish()` is called before anybody can find the cause. @returns false where there was one already
  template <class Publish>
  bool set(const Cause& cause, Publish publish) noexcept {
    const std::lock_guard lock(mutex_);
    if (cause_) {
      return false;
    }
    cause_ = copy_of(cause);
    publish();
    set_.store(true);  // before anybody else can find a cause and return
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
