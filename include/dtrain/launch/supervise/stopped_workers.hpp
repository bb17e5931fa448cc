#pragma once
/// @file
/// Stopped workers: how long each worker has been stopped (SIGSTOP, SIGTSTP); pure.

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/duration_text.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/supervise/exit_status.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A worker whose process is stopped now.
struct StoppedWorker {
  int rank = 0;
  pid_t process = 0;
  int signal = 0;

  /// The cause for a worker that had not joined the job. @param liveness how long the launcher waited for it
  std::string text(std::chrono::nanoseconds liveness) const {
    return format_text(
        "its process {} was stopped by {} before it had joined the job, and has not gone on for {}; where that is "
        "meant, give it longer with DTRAIN_LIVENESS_SECONDS",
        {process, signal_name(signal), duration_text(liveness)});
  }
};

/// A worker that is stopped for the liveness time is lost, as is a joined rank that sends nothing for that time.
class StoppedWorkers {
 public:
  using Clock = Deadline::Clock;

  explicit StoppedWorkers(std::chrono::nanoseconds liveness)
      : liveness_(std::chrono::ceil<Clock::duration>(std::min<std::chrono::nanoseconds>(liveness, longest))) {}

  /// @param stopped all workers that are stopped now and have not joined the job
  /// @returns workers that have been stopped for the liveness time, each once in that time. If the launcher itself was
  /// stopped in between, their time starts again.
  std::vector<StoppedWorker> lost(const std::vector<StoppedWorker>& stopped, Clock::time_point now) {
    const bool was_stopped = next() && now > *next() + liveness_ / 2;
    std::vector<StopTime> since;
    std::vector<StoppedWorker> lost;
    for (const StoppedWorker& each : stopped) {
      Clock::time_point begin = now;
      for (const StopTime& before : since_) {
        if (before.process == each.process && !was_stopped) {
          begin = before.begin;
        }
      }
      const bool is_lost = now - begin >= liveness_;
      since.push_back({each.process, is_lost ? now : begin});
      if (is_lost) {
        lost.push_back(each);
      }
    }
    since_ = std::move(since);
    return lost;
  }

  /// The time at which the next stopped worker is lost.
  std::optional<Clock::time_point> next() const {
    std::optional<Clock::time_point> first;
    for (const StopTime& each : since_) {
      first = std::min(first.value_or(each.begin + liveness_), each.begin + liveness_);
    }
    return first;
  }

 private:
  static constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);

  /// When a stopped process's time began.
  struct StopTime {
    pid_t process;
    Clock::time_point begin;
  };

  Clock::duration liveness_;
  std::vector<StopTime> since_;
};

}  // namespace DTRAIN_NAMESPACE::launch
