#pragma once
/// @file
/// group::Work: a collective that was enqueued on a stream.

#include <coroutine>
#include <memory>
#include <utility>

#include "dtrain/async/task/task.hpp"

namespace DTRAIN_NAMESPACE::group {

/// What a collective with a stream gives. It may be dropped: the operation runs all the same, and the memory that it
/// uses outlives it as before. Threads: one at a time.
/// @tparam State what the handles of one group share
template <class State>
class Work {
 public:
  using Stream = typename State::Communicator::Stream;

  Work(std::shared_ptr<State> state, Stream stream) : state_(std::move(state)) { stream.record(event_); }

  /// Whether the operation has ended, well or not. Blocking: no. Threads: any.
  bool is_complete() const noexcept { return event_.is_complete(); }

  /// Blocking: until the operation has ended, at most the group's timeout() after it begins to run. Not on the control
  /// loop. @throws the job's first cause; Error (timeout)
  void wait() { state_->wait(event_); }

  /// `co_await work` in a coroutine on the rank's control loop. It asks again and again, at intervals that grow to 2
  /// ms. Lifetime: outlives the wait. @throws as wait
  auto operator co_await() { return Awaiter(state_->completion(event_)); }

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
  typename Stream::Event event_;
};

}  // namespace DTRAIN_NAMESPACE::group
