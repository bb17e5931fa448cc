#pragma once
/// @file
/// WaitNotice: a warning in the log about an operation that waits long for other ranks.

#include <chrono>
#include <utility>

#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// One for each channel. After each line, the channel's next one is due after twice the time, in the same operation or
/// in a later one: ranks that wait for an evaluation after every epoch print a few lines, not one an epoch. Threads:
/// the one that runs the channel's work.
class WaitNotice {
 public:
  /// @param after how long an operation waits until the first line
  explicit WaitNotice(std::chrono::milliseconds after) noexcept : after_(after) {}

  /// To be called while the operation waits. @param describe says what it waits for, given the time waited; called for
  /// a line only, because it allocates
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

}  // namespace DTRAIN_NAMESPACE::backend
