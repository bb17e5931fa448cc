#pragma once
/// @file
/// FailureContext: latch, rank and group by which a wrapper's parts notice and report failures of their job.

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/group/rank_activity.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Failure reports of a rank in a group: FailureContext::of(group).
struct FailureContext {
  static FailureContext of(std::shared_ptr<const group::GroupHandle> group);

  std::shared_ptr<FailureLatch> latch;                ///< never null
  int rank = 0;                                       ///< the rank in the job, which causes name
  std::string host;                                   ///< this rank's host; causes name the host
  std::chrono::nanoseconds timeout{};                 ///< the longest time of one collective
  std::shared_ptr<const group::GroupHandle> group{};  ///< gets the report of an abandoned step; null: the latch does
  bool is_elastic = false;                            ///< GroupHandle::is_elastic
  std::shared_ptr<group::RankActivity> activity{};    ///< the rank's; may be null

  /// The thread that drives steps is there now.
  void enter(rendezvous::RankPhase phase, const group::RankActivity::Steps* steps = nullptr) const noexcept {
    if (activity) activity->enter(phase, steps);
  }

  /// Reports to the job that this rank failed with `text`.
  void report_exception(std::string text) const;

  /// Reports that a step was destroyed unfinished. @param unwinding whether an exception unwinds
  void report_abandoned_step(bool unwinding) const noexcept;
};

/// @throws Error (invalid_argument): the user's call `caller` came during a step, or (not `is_open`) after a failed one
[[noreturn]] void refuse_begin(const char* caller, bool is_open);

/// @throws Error (invalid_argument): the gradients are to be scaled after a step with a ShardedOptimizer
[[noreturn]] void refuse_to_scale();

/// @throws Error (unsupported): a step of an elastic job is captured in a CUDA graph
[[noreturn]] void refuse_capture();

#if DTRAIN_DEFINITIONS

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_capture() {
  throw_error(Errc::unsupported,
              "a step was captured in a CUDA graph in an elastic job, whose host waits for each step's reduction; make "
              "the steps without a graph, or start the job without --min-ranks");
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_to_scale() {
  throw_error(
      Errc::invalid_argument,
      "the gradients were to be scaled or clipped after a step with a ShardedOptimizer or MasterWeights, which has "
      "used them; give that step StepOptions::clip_norm, or a function that inspects the gradients");
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_begin(const char* caller, bool is_open) {
  throw_error(
      Errc::invalid_argument, "{}{}",
      {caller, is_open ? " came while a step was under way; finish() it first, or let the backward() that it is "
                         "in return"
                       : " came after a step that failed; gradients are no longer the same on all ranks"});
}

DTRAIN_DEFINED FailureContext FailureContext::of(std::shared_ptr<const group::GroupHandle> group) {
  FailureContext context{group->failure(), group->members().rank_in_job(), group->members().host, group->timeout()};
  context.is_elastic = group->is_elastic();
  context.activity = group->activity();
  context.group = std::move(group);
  return context;
}

DTRAIN_DEFINED void FailureContext::report_exception(std::string text) const {
  latch->report({CauseKind::exception, rank, host, std::move(text)});
}

DTRAIN_DEFINED void FailureContext::report_abandoned_step(bool unwinding) const noexcept {
  try {
    if (group) {
      group->report_abandoned_step(unwinding);
    } else {
      report_exception("a step was abandoned without finish()");
    }
  } catch (...) {
    // The other ranks notice when this rank leaves without having taken part.
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
