#pragma once
/// @file
/// GroupInternals: what dtrain's own parts use of a process group, and users do not.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"

namespace DTRAIN_NAMESPACE::group {

/// A shared handle. Threads: any, but for open_channel.
/// @tparam State what the handles of one group share
template <class State>
class GroupInternals {
 public:
  using Communicator = typename State::Communicator;

  explicit GroupInternals(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  /// Where the job's first cause arrives.
  const std::shared_ptr<FailureLatch>& failure() const noexcept {
    return state_->rank_context()->control_plane.failure();
  }

  /// Collective, blocking: a channel of its own, which never waits for another. Every rank opens the same channels in
  /// the same order; `purpose` appears in messages, and what `describe` says of an operation where it is not empty.
  /// @param accumulate f32: also where GroupOptions do not say so
  Communicator open_channel(const std::string& purpose, Accumulate accumulate = Accumulate::element,
                            const backend::DescribeOperation& describe = {}) const {
    return state_->open_channel(purpose, accumulate, describe);
  }

  /// 1, 2, ... for each purpose: ranks that ask in the same order get the same number, for the names of keys that are
  /// used once. Blocking: no.
  int next_number(const std::string& purpose) const { return state_->next_number(purpose); }

  /// The gradients that this rank's wrappers have bound, in all its groups.
  const std::shared_ptr<GradientBindingRegistry>& gradient_bindings() const noexcept {
    return state_->rank_context()->gradient_bindings;
  }

  /// Reports to the job that this rank failed; every rank ends with `text` as the cause unless another came first.
  /// Blocking: until the job knows, 2 s at most. @param failed_rank Error::rank(): the rank of the job it is about
  void report_exception(const std::string& text, std::optional<int> failed_rank = {}) const noexcept {
    state_->rank_context()->report_exception(text, failed_rank);
  }

  /// A step was destroyed before it finished. While an exception unwinds, the caller that catches it knows its text and
  /// is given 100 ms to report it first. Blocking: no.
  void report_abandoned_step(bool unwinding) const noexcept {
    const auto grace = unwinding ? std::chrono::milliseconds(100) : std::chrono::milliseconds(0);
    state_->rank_context()->report_after(grace, "a step was abandoned without finish()");
  }

  /// Keeps `work` until this rank leaves: for channels that an exception unwinds. If they were closed at once, the
  /// peers would report that this rank left, before the caller that catches the exception can report why.
  void keep_alive_until_leave(std::shared_ptr<void> work) const noexcept {
    state_->rank_context()->keep_alive_until_leave(std::move(work));
  }

  /// @throws Error (invalid_argument) on the control thread, where a coroutine runs: what blocks would wait for itself;
  /// and in a process that the rank forked.
  void require_may_block() const { state_->rank_context()->require_may_block(); }

 private:
  std::shared_ptr<State> state_;
};

/// The way to them: `GroupAccess::of(group)`, of a ProcessGroup or of a group of the tests that has internals().
struct GroupAccess {
  template <class Group>
  static auto of(const Group& group) {
    return group.internals();
  }
};

}  // namespace DTRAIN_NAMESPACE::group
