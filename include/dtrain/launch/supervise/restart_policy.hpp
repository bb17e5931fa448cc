#pragma once
/// @file
/// Whether a job that failed is started again: a pure function.

#include <string>

#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/launch/supervise/failure_analysis.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// --max-restarts. Attempts count from 0.
struct RestartPolicy {
  static constexpr int most_restarts = 10000;

  int max_restarts = 0;

  /// Not after a usage error: the next attempt could not follow the command line or the environment either.
  /// @param first the end that the attempt's end is due to
  /// @param interrupted a signal asked the job to end
  bool should_restart(const WorkerEnd& first, int attempt, bool interrupted) const noexcept {
    return !interrupted && attempt < max_restarts && first.exit_code() != exit_code_usage;
  }

  /// "attempt 2 of 4 begins: WHY"
  std::string announcement(int attempt, const std::string& why) const {
    return "attempt " + std::to_string(attempt + 1) + " of " + std::to_string(max_restarts + 1) + " begins: " + why;
  }
};

}  // namespace DTRAIN_NAMESPACE::launch
