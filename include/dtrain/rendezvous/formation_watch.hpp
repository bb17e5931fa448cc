#pragma once
/// @file
/// Waits until all ranks have joined, says whom it waits for, and ends the job when that takes too long.

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/seconds_text.hpp"
#include "dtrain/rendezvous/job.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lifetime: the loop and the job outlive it. Threads: the loop's.
class FormationWatch {
 public:
  /// @param ended is called when it has failed the job
  FormationWatch(async::EventLoop& loop, Job& job, Deadline deadline, std::function<void()> ended)
      : job_(&job),
        began_(Deadline::Clock::now()),
        deadline_(deadline),
        ended_(std::move(ended)),
        changed_(loop),
        watching_(loop.spawn(watch())) {}
  FormationWatch(const FormationWatch&) = delete;
  FormationWatch& operator=(const FormationWatch&) = delete;

  /// A rank has joined. One that waits less long than the store ends the formation for all: without it there is no job.
  void joined(std::uint64_t patience_ms) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.remaining());
    if (patience_ms < static_cast<std::uint64_t>(left.count())) {
      deadline_ = Deadline::after(std::chrono::milliseconds(patience_ms));
    }
    changed_.set();
  }

 private:
  /// How long users wait without a word; then as often again.
  static constexpr std::chrono::seconds patience{10};

  async::Task<void> watch() {
    Deadline notice = Deadline::after(patience);
    while (!job_->formed() && !job_->cause()) {
      co_await changed_.wait(earlier(notice, deadline_));
      const std::string so_far = seconds_text(Deadline::Clock::now() - began_);
      if (deadline_.passed()) {
        job_->formation_late(so_far);
        ended_();
      } else if (notice.passed() && !job_->formed() && !job_->cause()) {
        log(LogLevel::warning, "the job's store waits for " + job_->missing() + ", " + so_far + " so far");
        notice = Deadline::after(patience);
      }
    }
  }

  Job* job_;
  Deadline::Clock::time_point began_;
  Deadline deadline_;
  std::function<void()> ended_;
  async::AutoResetEvent changed_;
  async::Spawned watching_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
