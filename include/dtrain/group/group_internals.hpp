#pragma once
/// @file
/// GroupInternals: members of a process group for the library's own templates, typed by the policy; GroupHandle has
/// the members that need no policy.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/group/rank_context.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Members of a group for the library's own parts. A shared handle. Threads: any, except for open_channel.
/// @tparam State shared by the handles of one group
template <class State>
class GroupInternals {
 public:
  using Communicator = typename State::Communicator;

  explicit GroupInternals(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  /// Context that this rank's groups share.
  const auto& rank_context() const noexcept { return state_->rank_context(); }

  /// As the members of ProcessGroup.
  /// @{
  const auto& members() const noexcept { return state_->members(); }
  std::chrono::nanoseconds timeout() const noexcept { return rank_context()->timeout; }
  auto store() const { return state_->store(); }
  auto open_stream() const { return state_->open_stream(); }
  /// @}

  std::shared_ptr<const GroupHandle> handle() const noexcept { return state_; }

  /// Holds the job's first cause.
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return state_->failure(); }

  /// Collective, blocking: opens a new channel, which never waits for another. Every rank opens the same channels in
  /// the same order. Error sentences contain `purpose`, and the text of `describe` for an operation unless it is empty.
  /// @param accumulate f32: even if GroupOptions do not request it
  Communicator open_channel(const std::string& purpose, Accumulate accumulate = Accumulate::element,
                            const backend::DescribeOperation& describe = {},
                            backend::AlgorithmPreference algorithms = {}) const {
    return state_->open_channel(purpose, accumulate, describe, algorithms);
  }

  /// For enqueue_within(): the group's own channel and stream, and the event of their order with another stream.
  /// @{
  Communicator& channel() const { return state_->live(); }
  auto stream() const { return state_->stream(); }
  auto& order() const noexcept { return state_->order(); }
  /// @}

  /// @throws the job's first cause, if the job or the channel has failed
  void throw_if_failed() const { state_->throw_if_failed(); }

  /// Blocking: until the work before `event` has ended. @throws the job's first cause; Error (timeout)
  template <class Event>
  void wait(Event& event) const {
    state_->wait(event);
  }

  /// Counts 1, 2, ... for each purpose. Ranks that call it in the same order get the same number, for keys that are
  /// used once. Blocking: no.
  int next_number(const std::string& purpose) const { return state_->next_number(purpose); }

  /// The gradients that this rank's wrappers have bound, in all its groups.
  const std::shared_ptr<GradientBindingRegistry>& gradient_bindings() const noexcept {
    return rank_context()->gradient_bindings;
  }

  /// Reports to the job that this rank failed. Every rank fails with `text` as the cause, unless another cause came
  /// first. Blocking: until the job has the report, 2 s at most.
  /// @param failed_rank Error::rank(): the rank of the job that the exception is about
  void report_exception(const std::string& text, std::optional<int> failed_rank = {}) const noexcept {
    rank_context()->report_exception(text, failed_rank);
  }

  /// Keeps `work` until this rank leaves: for channels that an exception unwinds. If they closed at once, the peers
  /// would report that this rank left before the caller that catches the exception reports its cause.
  void keep_alive_until_leave(std::shared_ptr<void> work) const noexcept {
    rank_context()->keep_alive_until_leave(std::move(work));
  }

  /// @throws Error (invalid_argument) in a coroutine on the control loop, where a blocking call would wait for
  /// itself; and in a process that the rank forked.
  void require_may_block() const { rank_context()->require_may_block(); }

 private:
  std::shared_ptr<State> state_;
};

/// Gives the GroupInternals of a ProcessGroup, or of a test's group that has internals(): `GroupAccess::of(group)`.
struct GroupAccess {
  template <class Group>
  static auto of(const Group& group) {
    return group.internals();
  }
};

}  // namespace DTRAIN_NAMESPACE::group
