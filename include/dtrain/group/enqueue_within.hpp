#pragma once
/// @file
/// enqueue_within(): an operation of a group in the order of a CUDA stream of the program, without a wait of the host.

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/stream_handle.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::group {

/// Enqueues a collective (backend::AllReduce and others) on the group's own channel and stream. It runs after the
/// present work of `outer` and before its later work. Blocking: no. Threads: as the group's collectives. Lifetime:
/// buffers outlive the collective; memory that work of `outer` frees or overwrites does.
/// @tparam Internals GroupInternals of a group whose backend reduces device memory
/// @throws as the communicator's enqueue; the job's first cause, if the job or the channel has failed: the operation
/// would be skipped, and its output unwritten; Error (cuda)
template <class Internals, class Operation>
void enqueue_within(const Internals& group, StreamHandle outer, const Operation& operation) {
  group.throw_if_failed();
  auto& order = group.order();  // a wait is for the latest record at the time of its call
  const stream::cuda::StreamRef own = group.stream();
  stream::cuda::with_stream(outer, [&](stream::cuda::StreamRef given) {
    given.record(order);
    own.wait(order);
    const auto let_given_follow = [&] {
      own.record(order);
      given.wait(order);
    };
    try {
      group.channel().enqueue(operation, own);
    } catch (...) {  // a part of the operation may be enqueued, on memory that the caller frees now
      let_given_follow();
      throw;
    }
    let_given_follow();
  });
}

/// Blocking: until the present work of `outer` has ended. @throws the job's first cause; Error (timeout)
template <class Internals>
void wait_for_stream(const Internals& group, StreamHandle outer) {
  stream::cuda::with_stream(outer, [&](stream::cuda::StreamRef given) { given.record(group.order()); });
  group.wait(group.order());
}

}  // namespace DTRAIN_NAMESPACE::group

#endif  // DTRAIN_WITH_CUDA
