#pragma once
/// @file
/// Borrowed work: what a stream runs for a step with the memory of a gradient hook or of an optimizer.

#include <chrono>
#include <cstdlib>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/ddp/failure_context.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Before an exception leaves a step: it may free the hook or the optimizer. Ends the process if the stream still runs
/// their work after the context's timeout. Blocking: until that work has run, for which it may abort the channel.
template <class Reduction>
void end_borrowed_work(Reduction& reduction, const FailureContext& context) noexcept {
  if (!reduction.borrows()) return;
  constexpr std::chrono::seconds grace{2};  // most work ends by itself, and the other ranks' too
  const Cause cause{CauseKind::exception, context.rank, context.host, "a step ended by an exception"};
  if (!reduction.end(false, cause, Deadline::after(grace)) &&
      !reduction.end(true, cause, Deadline::after(context.timeout))) {
    log(LogLevel::error,
        "a stream still runs the work of a gradient hook or an optimizer, which an exception would free");
    std::abort();
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp
