#pragma once
/// @file
/// FirstCause: the first cause of a channel's failure; later causes are ignored. OrderedChannel and NCCL's
/// ChannelStatus own one each, and report it to the job by report_quietly(). WaitNotice: log warnings of a long wait
/// for other ranks, which may end in the channel's failure; log_place_at_timeout(): after a failure, where this rank
/// waited when another one's wait had timed out. Host channels and store_gather() use them.

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

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
    set_.store(true);  // under the lock: when another set() returns false, is_set() is true
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

/// A channel has one. After each line, its next line is due after twice the time, in the same or a later operation:
/// ranks that wait for an evaluation after every epoch print a few lines, not one for each epoch. Threads: the one that
/// runs the channel's work.
class WaitNotice {
 public:
  /// @param after how long an operation waits until the first line
  explicit WaitNotice(std::chrono::milliseconds after) noexcept : after_(after) {}

  /// To be called while the operation waits. @param describe given the time waited, says what the operation waits for;
  /// called for a line only, because it allocates
  template <class Describe>
  void update(int job_rank, std::chrono::nanoseconds waited, const Describe& describe) {
    if (waited >= after_) {
      log(LogLevel::warning,
          format_text("rank {}: still waits in {}", {job_rank, describe(std::exchange(after_, 2 * after_))}));
    }
  }

 private:
  std::chrono::milliseconds after_;
};

/// To be called when a wait has ended without success. If the job has failed because another rank timed out in another
/// operation, maybe waiting for this rank, logs which operation this rank was in. Blocking: after a timeout, until the
/// job's first cause is known, 500 ms at most.
/// @param ended_by why the channel has failed @param place the operation: "barrier, operation 5 of channel 'group'"
inline void log_place_at_timeout(const std::optional<Cause>& ended_by, const FailureLatch& job, int job_rank,
                                 const std::string& place) {
  if (!ended_by || ended_by->kind != CauseKind::timeout) {
    return;
  }
  job.block_until_failed(Deadline::after(std::chrono::milliseconds(500)));
  const std::optional<Cause> first = job.cause();
  if (first && first->kind == CauseKind::timeout && first->rank != job_rank && !first->text.starts_with(place)) {
    log(LogLevel::warning, format_text("rank {}: waited in {} when rank {} timed out", {job_rank, place, first->rank}));
  }
}

}  // namespace DTRAIN_NAMESPACE::backend
