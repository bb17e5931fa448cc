#pragma once
/// @file
/// Whether a job that failed is started again: a pure function.

#include <string>

#include "dtrain/launch/verdict.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// What a worker exits with that could not follow its command line or environment (see dtrain/run.hpp): the next
/// attempt could not either.
inline constexpr int exit_code_usage_error = 2;

/// --max-restarts. Attempts count from 0.
struct RestartPolicy {
  static constexpr int most_restarts = 10000;

  int max_restarts = 0;

  /// @param first the end that the attempt's end is due to
  /// @param interrupted somebody wants the job to end
  bool again(const WorkerEnd& first, int attempt, bool interrupted) const noexcept {
    return !interrupted && attempt < max_restarts && first.exit_code() != exit_code_usage_error;
  }

  /// "attempt 2 of 4 begins: WHY"
  std::string announcement(int attempt, const std::string& why) const {
    return "attempt " + std::to_string(attempt + 1) + " of " + std::to_string(max_restarts + 1) + " begins: " + why;
  }
};

}  // namespace DTRAIN_NAMESPACE::launch
