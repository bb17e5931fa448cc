#pragma once
/// @file
/// group::Work: a collective that was enqueued on a stream.

#include <coroutine>
#include <memory>
#include <utility>

#include "dtrain/async/task/task.hpp"

namespace DTRAIN_NAMESPACE::group {

/// What a collective with a stream gives. It may be dropped: the operation stays enqueued, and the memory that it uses
/// outlives it as before. On a host stream an operation begins to run when somebody waits on this rank (for it, or for
/// another one), or asks is_complete(); what has not begun when the rank leaves is skipped, so wait for the last one.
/// Lifetime: keeps the group as a handle of it does, and is used before leave(); a stream of the program's own outlives
/// it. Threads: one at a time. Not in a CUDA graph's capture, in which nothing completes.
/// @tparam State what the handles of one group share
template <class State>
class Work {
 public:
  using Stream = typename State::Communicator::Stream;

  Work(std::shared_ptr<State> state, Stream stream) : state_(std::move(state)) { stream.record(event_); }

  /// Whether the operation has ended, well or not; where it has not, it begins to run. Blocking: no.
  bool is_complete() const noexcept {
    if (event_.is_complete()) {
      return true;
    }
    state_->start_pending();
    return false;
  }

  /// Blocking: until the operation has ended, at most the group's timeout() after it begins to run. Not on the control
  /// loop. @throws the job's first cause; Error (timeout); Error (closed) after leave()
  void wait() const { state_->wait(event_); }

  /// `co_await work` in a coroutine on the rank's control loop; the program's thread has made the collective. It asks
  /// again and again, at intervals that grow to 2 ms. Lifetime: outlives the wait. @throws as wait
  auto operator co_await() const { return Awaiter(state_->completion(event_)); }

 private:
  class Awaiter {
   public:
    explicit Awaiter(async::Task<void> task) : task_(std::move(task)), inner_(task_) {}
    Awaiter(const Awaiter&) = delete;
    Awaiter& operator=(const Awaiter&) = delete;
    bool await_ready() const noexcept { return inner_.await_ready(); }
    bool await_suspend(std::coroutine_handle<> parent) { return inner_.await_suspend(parent); }
    void await_resume() { inner_.await_resume(); }

   private:
    async::Task<void> task_;
    async::Task<void>::Awaiter inner_;
  };

  std::shared_ptr<State> state_;
  mutable typename Stream::Event event_;  ///< waiting changes no value of it
};

}  // namespace DTRAIN_NAMESPACE::group
