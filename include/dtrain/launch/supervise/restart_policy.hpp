#pragma once
/// @file
/// Restart policy: decides whether a failed job is started again; pure.

#include <string>

#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/launch/supervise/failure_analysis.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// --max-restarts. Attempts count from 0.
struct RestartPolicy {
  static constexpr int most_restarts = 10000;

  int max_restarts = 0;

  /// False after a usage error: the next attempt would have the same command line and environment.
  /// @param first the end that caused the attempt's failure
  /// @param interrupted whether a signal requested the job's end
  bool should_restart(const WorkerEnd& first, int attempt, bool interrupted) const noexcept {
    return !interrupted && attempt < max_restarts && first.exit_code() != exit_code_usage;
  }

  /// "attempt 2 of 4 begins: WHY"
  std::string announcement(int attempt, const std::string& why) const {
    return "attempt " + std::to_string(attempt + 1) + " of " + std::to_string(max_restarts + 1) + " begins: " + why;
  }
};

}  // namespace DTRAIN_NAMESPACE::launch
