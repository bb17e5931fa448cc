#pragma once
/// @file
/// ChannelStatus of an NCCL channel: its first cause of failure. AbandonedThreads: threads left inside NCCL, for which
/// the process ends by _exit.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/failure/first_cause.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/failure_latch.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Counts abandoned threads. If one is left when the process ends, the process ends as by _exit, with its <cstdio>
/// streams flushed: other exit handlers would unload CUDA while NCCL uses it. Threads: any.
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

/// Keeps the first cause. Threads: any.
class ChannelStatus {
 public:
  explicit ChannelStatus(const ChannelContext& context)
      : job_rank_(context.reporting_rank()), host_(context.members.host), job_(context.failure) {}
  ChannelStatus(const ChannelStatus&) = delete;
  ChannelStatus& operator=(const ChannelStatus&) = delete;

  bool aborted() const noexcept { return cause_.is_set(); }

  std::optional<Cause> failure() const { return cause_.get(); }

  /// Takes the channel out of service and wakes its watchdog. Does not block.
  void abort(const Cause& cause) noexcept {
    if (cause_.set(cause)) {
      const std::lock_guard lock(mutex_);  // no abort between the watchdog's check and its sleep
      begin_ending();
    }
  }

  /// Calls abort(), and reports the cause to the job.
  void fail(const Cause& cause) noexcept {
    abort(cause);
    report_quietly(*job_, cause);
  }

  /// fail() with a cause that originates on this rank.
  void fail(CauseKind kind, const std::string& text) noexcept { fail({kind, job_rank_, host_, text}); }

  /// Blocking: waits half a second for the job's first cause, which says more if another rank may have failed.
  /// @returns whether the job has failed
  bool wait_for_first_cause() const {
    return job_->block_until_failed(Deadline::after(std::chrono::milliseconds(500)));
  }

  /// @throws the job's first cause, or this channel's; Error if it originates on this rank
  void check() const {
    if (!aborted() && !job_->failed()) {
      return;
    }
    wait_for_first_cause();
    job_->throw_if_failed(job_rank_);
    throw_cause(*failure());
  }

  /// @name The watching thread
  /// @{
  void stop_watching() noexcept {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    begin_ending();
  }
  void set_ended() noexcept {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (abandoned_) {
      AbandonedThreads::remove();
    }
    changed_.notify_all();  // the lock is held: the thread does not use this object afterwards
  }
  /// Blocking: until the deadline, an abort, or stop_watching(). @returns whether the watchdog continues
  bool block_while_watching(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return !block_until(changed_, lock, deadline, [this] { return stopping_ || aborted(); });
  }
  /// Longest wait for NCCL to end a communicator.
  static constexpr std::chrono::seconds longest_end{10};

  /// Blocking: at most `longest` since the abort or stop_watching(); one second if the process has abandoned threads.
  /// @returns whether the thread has ended
  bool block_until_ended(std::chrono::seconds longest = longest_end) {
    std::unique_lock lock(mutex_);
    const auto timeout = AbandonedThreads::count() == 0 ? longest : std::chrono::seconds(1);
    const auto since = ending_since_.value_or(Deadline::Clock::now());
    return block_until(changed_, lock, Deadline::at(since + timeout), [this] { return ended_; });
  }
  /// Marks the thread as abandoned: it is not joined. @returns false if it has ended meanwhile
  bool abandon_thread() noexcept {
    const std::lock_guard lock(mutex_);
    abandoned_ = !ended_;
    if (abandoned_) {
      AbandonedThreads::add();
    }
    return abandoned_;
  }
  /// @}

 private:
  /// Precondition: the caller holds the mutex.
  void begin_ending() noexcept {
    ending_since_ = ending_since_.value_or(Deadline::Clock::now());
    changed_.notify_all();
  }

  const int job_rank_;
  const std::string host_;
  const std::shared_ptr<FailureLatch> job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  FirstCause cause_;
  bool stopping_ = false;
  bool ended_ = false;
  bool abandoned_ = false;
  std::optional<Deadline::Clock::time_point> ending_since_;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
