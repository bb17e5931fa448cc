#pragma once
/// @file
/// WaitNotice of a channel: log lines of a long wait for other ranks, each after twice the last one's time.

#include <chrono>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A channel has one. After each line, its next line is due after twice the time, in the same or a later operation:
/// ranks that wait for an evaluation after every epoch print a few lines, not one for each epoch. Threads: the one that
/// runs the channel's work.
class WaitNotice {
 public:
  /// @param after how long an operation waits until the first line
  /// @param is_shown_by_store whether the job's store shows what all ranks wait in (RankStatuses): then the lines are
  /// for the level info alone
  explicit WaitNotice(std::chrono::milliseconds after, bool is_shown_by_store = false) noexcept
      : after_(after), level_(is_shown_by_store ? LogLevel::info : LogLevel::warning) {}

  /// To be called while the operation waits. @param describe given the time waited, says what the operation waits for;
  /// called for a line only, because it allocates
  template <class Describe>
  void update(int job_rank, std::chrono::nanoseconds waited, const Describe& describe) {
    if (waited >= after_) {
      log(level_, format_text("rank {}: still waits in {}", {job_rank, describe(std::exchange(after_, 2 * after_))}));
    }
  }

 private:
  std::chrono::milliseconds after_;
  LogLevel level_;
};

}  // namespace DTRAIN_NAMESPACE::backend
