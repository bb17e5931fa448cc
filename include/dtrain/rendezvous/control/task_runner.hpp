#pragma once
/// @file
/// rendezvous::TaskRunner of a RankContext: coroutines on a rank's control loop. OffThreadDeleter: destroys an object
/// outside the control thread.

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/failure_latch.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Starts coroutines. Each ends by itself, when its owner cancels it, when the job fails, or when the rank leaves.
/// Lifetime: the thread outlives it. Threads: any; the destructor and close_blocking not from the loop's.
class TaskRunner {
 public:
  TaskRunner(async::LoopThread& thread, std::shared_ptr<FailureLatch> failure, int rank);
  TaskRunner(const TaskRunner&) = delete;
  TaskRunner& operator=(const TaskRunner&) = delete;
  ~TaskRunner() { close_blocking(); }

  bool on_loop_thread() const noexcept { return handle_->on_loop_thread(); }
  async::LoopHandle& handle() const noexcept { return *handle_; }
  async::EventLoop& loop() const noexcept { return loop_; }

  /// Starts `make(loop)` or `make()` on the loop; `make` exists as long as the coroutine.
  /// @throws the job's first cause; Error (closed) after close_blocking
  template <class Make>
  auto start(Make make) const {
    running_->require_open("starting a coroutine on the control loop: this rank has left the job");
    auto checked = [running = running_, make = std::move(make)](async::EventLoop& loop) mutable {
      running->require_open(RunningTasks::ended);
      return async::detail::call_with_loop(make, loop);
    };
    return handle_->spawn(std::move(checked), "starting a coroutine on the control loop",
                          std::shared_ptr<async::SpawnStates>(running_, &running_->tasks));
  }

  /// Runs the coroutine of `make`, which outlives the call, and returns its value.
  /// Blocking: until the coroutine has ended; at the deadline it is cancelled, and is gone when this returns.
  /// @throws what BackgroundTask::wait throws
  template <class Make>
  auto run_blocking(Make& make, Deadline deadline) const {
    auto task = start([&make](async::EventLoop& loop) { return async::detail::call_with_loop(make, loop); });
    return task.wait(deadline);
  }

  /// Ends all coroutines and starts no more. Blocking: until they are gone, as long as they keep the loop busy.
  void close_blocking() noexcept;

 private:
  /// The coroutines that have not ended.
  struct RunningTasks {
    static constexpr const char* ended = "a coroutine on the control loop was ended, since this rank has left the job";

    RunningTasks(std::shared_ptr<FailureLatch> latch, int own_rank) : failure(std::move(latch)), rank(own_rank) {}

    /// @throws the job's first cause; Error (closed) with `sentence` if the rank has left. Threads: any.
    void require_open(const char* sentence) const;

    /// For what require_open() throws. Threads: the loop's.
    void cancel_all() noexcept;

    const std::shared_ptr<FailureLatch> failure;
    const int rank;
    std::atomic<bool> left{false};
    async::SpawnStates tasks;  ///< the control thread only
  };

  async::EventLoop& loop_;
  std::shared_ptr<async::LoopHandle> handle_;
  std::shared_ptr<RunningTasks> running_;
  FailureLatch::Subscription subscription_;
};

/// Deletes on the calling thread; if that is the control thread, on a new one. A coroutine on the control thread may
/// hold the last handle, and the owner's destructor waits for that thread. In a process that was forked since, the
/// owner is not deleted, as with DeleteInOwningProcess. @pre the owner has a TaskRunner `tasks`
struct OffThreadDeleter {
  template <class Owner>
  void operator()(Owner* owner) const noexcept {
    if (!process.is_current()) {
      return;
    }
    if (owner->tasks.on_loop_thread()) {
      try {
        std::thread([owner] { delete owner; }).detach();
      } catch (...) {
        // No thread can be created: the owner stays, and the other ranks see the end of this process.
      }
    } else {
      delete owner;
    }
  }
  OwningProcess process{};
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED TaskRunner::TaskRunner(async::LoopThread& thread, std::shared_ptr<FailureLatch> failure, int rank)
    : loop_(thread.loop()),
      handle_(thread.handle()),
      running_(std::make_shared<RunningTasks>(std::move(failure), rank)),
      subscription_(running_->failure->subscribe([handle = handle_, running = running_](const Cause&) {
        handle->post([running] { running->cancel_all(); });
      })) {}

DTRAIN_DEFINED void TaskRunner::close_blocking() noexcept {
  subscription_.reset();
  if (running_->left.exchange(true)) {
    return;
  }
  try {
    const auto end = [running = running_](async::EventLoop&) -> async::Task<void> {
      running->cancel_all();
      co_return;
    };
    handle_->run_blocking(end, Deadline::after(std::chrono::seconds(60)), "ending the coroutines of this rank");
  } catch (...) {
    // The loop has ended, and with it every coroutine.
  }
}

DTRAIN_DEFINED void TaskRunner::RunningTasks::require_open(const char* sentence) const {
  failure->throw_if_failed(rank);
  if (left) {
    throw Error(Errc::closed, sentence);
  }
}

DTRAIN_DEFINED void TaskRunner::RunningTasks::cancel_all() noexcept {
  while (async::SpawnState* state = tasks.pop_front()) {
    try {
      require_open(ended);
    } catch (...) {
      state->error = std::current_exception();
    }
    state->task.cancel();
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::rendezvous
