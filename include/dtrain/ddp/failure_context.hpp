#pragma once
/// @file
/// Failure context: latch, rank and callback with which a reducer fails together with its job.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/core/failure_latch.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Given by the group.
struct FailureContext {
  std::shared_ptr<FailureLatch> latch;  ///< never null
  int rank = 0;                         ///< in the job, as causes name it
  std::string host;                     ///< this rank's, for causes
  std::chrono::nanoseconds timeout{};   ///< of one collective
  /// Called when a step is destroyed unfinished, with whether an exception is under way; it must not throw. The group
  /// waits a moment for the caller that catches that exception and knows its text. Without it the job is notified at
  /// once.
  std::function<void(bool unwinding)> step_abandoned{};

  /// Reports to the job that this rank failed with `text`.
  void report_exception(std::string text) const { latch->report({CauseKind::exception, rank, host, std::move(text)}); }
};

}  // namespace DTRAIN_NAMESPACE::ddp
