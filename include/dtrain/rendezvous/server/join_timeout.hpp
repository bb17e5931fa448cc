#pragma once
/// @file
/// Join timeout: waits for all ranks, logs the missing ones, and fails the job at the deadline.

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/duration_text.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/server_state/job_state.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lifetime: the loop and the job outlive it. Threads: the loop's.
class JoinTimeout {
 public:
  /// @param ended called after it has failed the job
  JoinTimeout(async::EventLoop& loop, JobState& job, Deadline deadline, std::function<void()> ended)
      : job_(&job),
        began_(Deadline::Clock::now()),
        deadline_(deadline),
        ended_(std::move(ended)),
        changed_(loop),
        watch_task_(loop.spawn(watch())) {}
  JoinTimeout(const JoinTimeout&) = delete;
  JoinTimeout& operator=(const JoinTimeout&) = delete;

  /// A rank has joined. If it times out before the store, its timeout applies to the job, which needs every rank.
  void joined(std::uint64_t join_timeout_ms) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.remaining());
    if (join_timeout_ms < static_cast<std::uint64_t>(left.count())) {
      deadline_ = Deadline::after(std::chrono::milliseconds(join_timeout_ms));
    }
    changed_.set();
  }

 private:
  /// Interval of the log lines while ranks are missing.
  static constexpr std::chrono::seconds notice_interval{10};

  async::Task<void> watch() {
    Deadline notice = Deadline::after(notice_interval);
    while (!job_->formed() && !job_->cause()) {
      co_await changed_.wait(earlier(notice, deadline_));
      const std::string so_far = duration_text(Deadline::Clock::now() - began_);
      if (deadline_.passed()) {
        job_->on_join_timeout(so_far);
        ended_();
      } else if (notice.passed() && !job_->formed() && !job_->cause()) {
        log(LogLevel::warning, format_text("the job's store waits for {}, {} so far", {job_->missing(), so_far}));
        notice = Deadline::after(notice_interval);
      }
    }
  }

  JobState* job_;
  Deadline::Clock::time_point began_;
  Deadline deadline_;
  std::function<void()> ended_;
  async::AutoResetEvent changed_;
  async::TaskHandle watch_task_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
