#pragma once
/// @file
/// group::Work: handle on a collective that is enqueued on a stream.

#include <memory>
#include <utility>

#include "dtrain/async/task.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::group {

/// A collective that was called with a stream. It may be dropped: the operation stays enqueued and uses its buffers,
/// which belong to it from the call until it has ended: the program neither writes the input nor uses the output.
/// Operations make progress by themselves; on a host stream by GroupOptions::progress. Operations that have not begun
/// when the rank leaves are skipped: wait for the last one.
/// Lifetime: keeps the group like a handle; is used before leave(); the program's own stream outlives it. Threads: one
/// at a time. Not in a CUDA graph capture, in which nothing completes.
/// @tparam State shared by the handles of one group
/// @ingroup collectives
template <class State>
class Work {
 public:
  using Stream = typename State::Communicator::Stream;

  Work(std::shared_ptr<State> state, Stream stream) : state_(std::move(state)) { stream.record(event_); }

  /// Whether the operation has ended, successfully or not. If it has not, starts pending work. Blocking: no.
  bool is_complete() const noexcept {
    if (event_.is_complete()) {
      return true;
    }
    state_->run_unattended();
    return false;
  }

  /// Blocking: until the operation has ended, at most the group's timeout() after it begins to run. Not on the control
  /// loop. @throws the job's first cause; Error (timeout); Error (closed) after leave()
  void wait() const { state_->wait(event_); }

  /// `co_await work` in a coroutine on the rank's control loop, for a collective that a thread of the program enqueued.
  /// The coroutine polls at intervals that grow to 2 ms. Lifetime: the Work outlives the wait. @throws as wait
  auto operator co_await() const { return async::OwnedTaskAwaiter<void>(state_->completion(event_)); }

 private:
  std::shared_ptr<State> state_;
  mutable typename Stream::Event event_;  ///< waiting does not change its value
};

}  // namespace DTRAIN_NAMESPACE::group
