#pragma once
/// @file
/// GroupAccess: the GroupState of a process group, for library templates. follow_stream(), enqueue_within(): the
/// group's work in the order of a program's CUDA stream.

#include <memory>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/group/group_state.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Gives the GroupState of a ProcessGroup, or what a test's group has as internals(): `GroupAccess::of(group)`.
struct GroupAccess {
  template <class Group>
  static auto of(const Group& group) noexcept -> decltype(group.internals()) {
    return group.internals();
  }
};

/// The group without its policy's types.
template <class Group>
std::shared_ptr<const GroupHandle> handle_of(const Group& group) {
  return GroupAccess::of(group).handle();
}

#if DTRAIN_WITH_CUDA

/// Lets later work of the group's own stream run after the present work of `outer`, a CUDA stream of the program; does
/// nothing for a handle of the host. Blocking: no. @throws Error (cuda)
template <class State>
void follow_stream(const State& state, StreamHandle outer) {
  if constexpr (std::is_same_v<decltype(state.stream()), stream::cuda::StreamRef>) {
    if (outer.device.kind != DeviceKind::cuda) return;
    auto& order = state.order();  // a wait is for the latest record at the time of its call
    stream::cuda::with_stream(outer, [&](stream::cuda::StreamRef given) { given.record(order); });
    state.stream().wait(order);
  }
}

/// Enqueues a collective (backend::AllReduce and others) on the group's own channel and stream, which reduce device
/// memory. It runs after the present work of `outer`, a CUDA stream of the program, and before its later work.
/// Blocking: no. Threads: as the group's collectives. Lifetime: buffers outlive the collective; memory that later work
/// of `outer` frees or overwrites does.
/// @throws as the communicator's enqueue; the job's first cause, if the job or the channel has failed: the operation
/// would be skipped, and its output unwritten; Error (cuda)
template <class State, class Operation>
void enqueue_within(const State& state, StreamHandle outer, const Operation& operation) {
  state.throw_if_failed();
  auto& order = state.order();
  const stream::cuda::StreamRef own = state.stream();
  follow_stream(state, outer);
  stream::cuda::with_stream(outer, [&](stream::cuda::StreamRef given) {
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
void wait_for_stream(const State& state, StreamHandle outer) {
  stream::cuda::with_stream(outer, [&](stream::cuda::StreamRef given) { given.record(state.order()); });
  state.wait(state.order());
}

#else

template <class State>
void follow_stream(const State&, StreamHandle) noexcept {}

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::group
