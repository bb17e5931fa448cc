#pragma once
/// @file
/// FailureLatch: a process's copy of the job's first cause, set once; every wait for other ranks ends by it.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/owning_process.hpp"

namespace DTRAIN_NAMESPACE {

/// Set once, read by every thread of the rank. Threads: all members may be called concurrently.
///
/// The control plane, which knows the job's first cause, calls set(). Code that detects a failure on this rank calls
/// report(): the group's reporter passes the report to the store, which answers every rank with the job's first cause.
/// Without a reporter, report() calls set().
class FailureLatch : public std::enable_shared_from_this<FailureLatch> {
 public:
  using Callback = std::function<void(const Cause&)>;
  using Reporter = std::function<void(const Cause&)>;

  /// Removes a callback. Keeps the latch.
  struct Unsubscribe {
    void operator()(Callback* callback) const noexcept;
    std::shared_ptr<FailureLatch> latch;
  };

  /// Owns a callback's registration: after its destruction the callback is not running and is never called. A callback
  /// must not destroy its own Subscription.
  using Subscription = std::unique_ptr<Callback, Unsubscribe>;

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  /// The first cause; empty while the job has not failed.
  std::optional<Cause> cause() const;

  /// Stores `cause` if it is the first, and calls every callback with it, in this thread, before it returns.
  /// @returns whether it was the first
  bool set(const Cause& cause);

  /// Blocking: until the job has failed or the deadline passes. @returns whether it has failed.
  bool block_until_failed(Deadline deadline) const;

  /// Reports a failure of this rank to the job, whose first cause may be another one. Does nothing in a forked process,
  /// which is not the rank.
  void report(const Cause& cause);

  /// Installs the function that sends reports to the store; an empty one removes it.
  void set_reporter(Reporter reporter);

  /// Calls `callback` once: when the job fails, or now if it has. It must not block, throw or touch this latch.
  [[nodiscard]] Subscription subscribe(Callback callback);

  /// @throws PeerLost, JobFailed with the job's first cause, on ranks other than its origin; Error on the origin
  void throw_if_failed(int own_rank) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  std::optional<Cause> cause_;
  std::list<Callback> callbacks_;
  Reporter reporter_;
  const OwningProcess process_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void FailureLatch::Unsubscribe::operator()(Callback* callback) const noexcept {
  const std::lock_guard lock(latch->mutex_);
  latch->callbacks_.remove_if([callback](const Callback& each) { return &each == callback; });
}

DTRAIN_DEFINED std::optional<Cause> FailureLatch::cause() const {
  if (!failed()) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  return cause_;
}

DTRAIN_DEFINED bool FailureLatch::set(const Cause& cause) {
  const std::lock_guard lock(mutex_);
  if (failed()) {
    return false;
  }
  cause_ = cause;
  failed_.store(true, std::memory_order_release);
  for (const Callback& callback : callbacks_) {
    callback(*cause_);
  }
  changed_.notify_all();
  return true;
}

DTRAIN_DEFINED bool FailureLatch::block_until_failed(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  return block_until(changed_, lock, deadline, [this] { return failed(); });
}

DTRAIN_DEFINED void FailureLatch::report(const Cause& cause) {
  if (!process_.is_current()) {
    return;
  }
  Reporter reporter;
  {
    const std::lock_guard lock(mutex_);
    reporter = reporter_;
  }
  if (reporter) {
    reporter(cause);
  } else {
    set(cause);
  }
}

DTRAIN_DEFINED void FailureLatch::set_reporter(Reporter reporter) {
  const std::lock_guard lock(mutex_);
  reporter_ = std::move(reporter);
}

DTRAIN_DEFINED FailureLatch::Subscription FailureLatch::subscribe(Callback callback) {
  const std::lock_guard lock(mutex_);
  Callback& kept = callbacks_.emplace_back(std::move(callback));
  if (failed()) {
    kept(*cause_);
  }
  return {&kept, Unsubscribe{shared_from_this()}};
}

DTRAIN_DEFINED void FailureLatch::throw_if_failed(int own_rank) const {
  const std::optional<Cause> found = cause();
  if (!found) {
    return;
  }
  if (found->rank != own_rank || found->kind == CauseKind::lost) {
    throw_cause(*found);
  }
  const Errc code = found->kind == CauseKind::timeout        ? Errc::timeout
                    : found->kind == CauseKind::disagreement ? Errc::disagreement
                                                             : Errc::job_failed;
  throw Error(code, found->sentence()).with_rank(own_rank);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
