#pragma once
/// @file
/// Failure context: latch, rank and callback with which a reducer reports failures to its job.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/failure_latch.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Provided by the group.
struct FailureContext {
  std::shared_ptr<FailureLatch> latch;  ///< never null
  int rank = 0;                         ///< in the job; causes name it
  std::string host;                     ///< this rank's; causes name it
  std::chrono::nanoseconds timeout{};   ///< of one collective
  /// Called when a step is destroyed unfinished; must not throw. `unwinding`: an exception is unwinding, and the report
  /// waits a moment so that the exception's catcher can report its text first. If empty, the job is notified at once.
  std::function<void(bool unwinding)> step_abandoned{};

  /// Reports to the job that this rank failed with `text`.
  void report_exception(std::string text) const;

  /// A step is destroyed unfinished. @param unwinding as of step_abandoned
  void report_abandoned_step(bool unwinding) const noexcept;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void FailureContext::report_exception(std::string text) const {
  latch->report({CauseKind::exception, rank, host, std::move(text)});
}

DTRAIN_DEFINED void FailureContext::report_abandoned_step(bool unwinding) const noexcept {
  try {
    if (step_abandoned) {
      step_abandoned(unwinding);
    } else {
      report_exception("a step was abandoned without finish()");
    }
  } catch (...) {
    // The other ranks notice when this rank leaves without having taken part.
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
