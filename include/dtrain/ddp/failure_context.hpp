#pragma once
/// @file
/// Failure context: latch, rank and callback with which a reducer reports failures to its job.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/text/format_text.hpp"

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
};

/// @throws Error (invalid_argument): the user's call `caller` came during a step, or (not `is_open`) after a failed one
[[noreturn]] void refuse_begin(const char* caller, bool is_open);

#if DTRAIN_DEFINITIONS

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_begin(const char* caller, bool is_open) {
  throw_error(
      Errc::invalid_argument, "{}{}",
      {caller, is_open ? " came while a step was under way; finish() it first, or let the backward() that it is "
                         "in return"
                       : " came after a step that failed; gradients are no longer the same on all ranks"});
}

DTRAIN_DEFINED void FailureContext::report_exception(std::string text) const {
  latch->report({CauseKind::exception, rank, host, std::move(text)});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
