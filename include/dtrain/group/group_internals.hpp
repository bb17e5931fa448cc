#pragma once
/// @file
/// GroupInternals: members of a process group for the library's own templates, typed by the policy; GroupHandle has the
/// members that need no policy. enqueue_within(): an operation of a group in the order of a CUDA stream of the program,
/// without a wait of the host. Wrappers, checkpoints and elastic.hpp call them.

#include <memory>
#include <string>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/stream_handle.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Members of a group for the library's own parts. A shared handle. Threads: any, except for open_channel.
/// @tparam State shared by the handles of one group
template <class State>
class GroupInternals {
 public:
  using Communicator = typename State::Communicator;

  explicit GroupInternals(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  /// Context that this rank's groups share: reports of exceptions, and channels that outlive their wrapper.
  const auto& rank_context() const noexcept { return state_->rank_context(); }

  /// As the members of ProcessGroup.
  /// @{
  const auto& members() const noexcept { return state_->members(); }
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

  /// For enqueue_within() and wait_for_stream().
  State& state() const noexcept { return *state_; }

  /// Counts 1, 2, ... for each purpose. Ranks that call it in the same order get the same number, for keys that are
  /// used once. Blocking: no.
  int next_number(const std::string& purpose) const { return state_->next_number(purpose); }

  /// The gradients that this rank's wrappers have bound, in all its groups.
  const std::shared_ptr<GradientBindingRegistry>& gradient_bindings() const noexcept {
    return rank_context()->gradient_bindings;
  }

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

#if DTRAIN_WITH_CUDA

/// Enqueues a collective (backend::AllReduce and others) on the group's own channel and stream, which reduce device
/// memory. It runs after the present work of `outer`, a CUDA stream of the program, and before its later work.
/// Blocking: no. Threads: as the group's collectives. Lifetime: buffers outlive the collective; memory that later work
/// of `outer` frees or overwrites does.
/// @throws as the communicator's enqueue; the job's first cause, if the job or the channel has failed: the operation
/// would be skipped, and its output unwritten; Error (cuda)
template <class State, class Operation>
void enqueue_within(const GroupInternals<State>& group, StreamHandle outer, const Operation& operation) {
  State& state = group.state();
  state.throw_if_failed();
  auto& order = state.order();  // a wait is for the latest record at the time of its call
  const stream::cuda::StreamRef own = state.stream();
  stream::cuda::with_stream(outer, [&](stream::cuda::StreamRef given) {
    given.record(order);
    own.wait(order);
    const auto let_given_follow = [&] {
      own.record(order);
      given.wait(order);
    };
    try {
      state.live().enqueue(operation, own);
    } catch (...) {  // a part of the operation may be enqueued, on memory that the caller frees now
      let_given_follow();
      throw;
    }
    let_given_follow();
  });
}

/// Blocking: until the present work of `outer` has ended. @throws the job's first cause; Error (timeout)
template <class State>
void wait_for_stream(const GroupInternals<State>& group, StreamHandle outer) {
  State& state = group.state();
  stream::cuda::with_stream(outer, [&](stream::cuda::StreamRef given) { given.record(state.order()); });
  state.wait(state.order());
}

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::group
