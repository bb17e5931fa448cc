#pragma once
/// @file
/// WaitNotice of a channel: log warnings of a long wait for other ranks, each after twice the last one's time.

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend {

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
