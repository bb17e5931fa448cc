#pragma once
/// @file
/// async::EventLoop: runs coroutines in one thread.

#include <pthread.h>

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "dtrain/async/loop/awaiters.hpp"
#include "dtrain/async/loop/post_queue.hpp"
#include "dtrain/async/task/outcome.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Runs tasks in the thread that calls run() or run_until(). Other threads use post().
/// Threads: post, stop and on_loop_thread from any; all else on the thread that runs the loop, or any if none does.
/// Lifetime: outlives every awaiter, ManualResetEvent and socket made for it; destruction destroys its remaining tasks.
class EventLoop {
 public:
  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop();

  /// Adds a task, which starts in the loop's next turn. The result owns it; TaskHandle::detach gives it to the loop.
  /// @param on_exception gets an exception that leaves the task; without a handler it leaves run() or run_until()
  /// @param on_destroyed runs after the task's frame is destroyed, however the task ended
  /// @throws Error (cancelled) once the loop is closed
  [[nodiscard]] TaskHandle spawn(Task<void> task);
  [[nodiscard]] TaskHandle spawn(Task<void> task, ExceptionHandler on_exception, DestroyedHandler on_destroyed = {});

  /// As spawn(), owned by the loop.
  void spawn_detached(Task<void> task, ExceptionHandler on_exception = {});

  /// Runs `function()` on the loop's thread, in order of posting. Its exception leaves run(). After close() it returns
  /// false and destroys the function without running it; close() does the same to functions that have not run.
  /// Threads: any. Costs an allocation, a short lock, and a system call if the queue was empty.
  template <class F>
  bool post(F function) {
    return posts_.push(std::move(function));
  }

  /// Runs until stop(). Blocking: without a deadline, because any thread can call stop().
  /// @throws Error (invalid_argument) if the loop is running already; the exception of a posted function or of a task
  /// without a handler (the loop can then be run again)
  void run() {
    drive([] { return false; });
  }

  /// Makes run() return after the present turn; if it is not running, the next run() returns at once. Threads: any.
  void stop() noexcept {
    stop_asked_.store(true);
    posts_.wake();
  }

  /// Runs the loop in this thread until `task` has ended.
  /// Blocking: until the deadline, when the task is cancelled.
  /// @param doing begins the error message of a timeout
  /// @throws the task's exception; Error (timeout); Error (cancelled) after stop(); and the exceptions of run()
  template <class T>
  T run_until(Task<T> task, Deadline deadline, std::string_view doing = "running a task") {
    Outcome<T> outcome;
    DeadlineTimer timer(scheduler_, deadline);
    TaskHandle owner = spawn(store_outcome(std::move(task), outcome));
    drive([&] { return owner.done() || deadline.passed(); });
    if (!owner.done()) {
      owner.cancel();
      const bool late = deadline.passed();
      throw_error(late ? Errc::timeout : Errc::cancelled, "{}: {}",
                  {doing, late ? "the deadline passed" : "the event loop was stopped"});
    }
    return outcome.take();
  }

  /// `co_await loop.sleep_until(deadline)`: always suspends, also for an instant that has passed.
  SleepAwaiter sleep_until(Deadline deadline) noexcept { return {scheduler_, deadline}; }
  SleepAwaiter sleep_for(Deadline::Clock::duration time) noexcept { return {scheduler_, Deadline::after(time)}; }

  /// `co_await loop.readable(fd, deadline)`: WakeReason::ready when a read would not block (also at the end of the
  /// stream and on errors), or WakeReason::timed_out. Several coroutines may wait for one descriptor. With a past
  /// deadline it checks once. Lifetime: the descriptor stays open while a coroutine waits for it.
  /// @throws Error (posix) at the await if epoll refuses the descriptor
  DescriptorAwaiter readable(int descriptor, Deadline deadline) noexcept {
    return {scheduler_, descriptor, Interest::read, deadline};
  }
  DescriptorAwaiter writable(int descriptor, Deadline deadline) noexcept {
    return {scheduler_, descriptor, Interest::write, deadline};
  }

  /// Whether the caller is inside run() or run_until(). Threads: any.
  bool on_loop_thread() const noexcept {
    return running_.load() && ::pthread_equal(thread_.load(), ::pthread_self()) != 0;
  }

  /// Destroys all tasks, and refuses new tasks and posts. The destructor calls it. Not from inside run().
  void close() noexcept;

  /// Number of descriptors and timers that coroutines wait for: for tests and diagnosis.
  std::size_t registered_descriptors() const noexcept { return scheduler_.registered_descriptors(); }
  std::size_t pending_timers() const noexcept { return scheduler_.pending_timers(); }

  /// For the implementation of awaiters.
  Scheduler& scheduler() noexcept { return scheduler_; }

 private:
  /// Wakes the loop at a deadline.
  struct DeadlineTimer : Waiter {
    DeadlineTimer(Scheduler& home, Deadline deadline) : scheduler(home) {
      scheduler.add(*this, std::noop_coroutine(), deadline);
    }
    ~DeadlineTimer() { scheduler.remove(*this); }
    Scheduler& scheduler;
  };

  template <class Done>
  void drive(Done done) {
    if (running_.exchange(true)) {
      throw_error(Errc::invalid_argument, "running an event loop that is running already; await the task instead");
    }
    thread_.store(::pthread_self());
    struct RunningReset {
      ~RunningReset() { running.store(false); }
      std::atomic<bool>& running;
    } reset{running_};
    while (!done() && !stop_asked_.exchange(false)) {
      const bool posted = scheduler_.poll(posts_.unfinished());
      if (posted || posts_.unfinished()) {
        posts_.run_all();
      }
      scheduler_.resume_ready();
    }
  }

  PostQueue posts_;
  Scheduler scheduler_;
  std::atomic<bool> stop_asked_{false};
  std::atomic<bool> running_{false};
  std::atomic<pthread_t> thread_{};
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::async {

DTRAIN_DEFINED EventLoop::EventLoop() : scheduler_(posts_.descriptor()) {}

DTRAIN_DEFINED EventLoop::~EventLoop() {
  close();
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED TaskHandle EventLoop::spawn(Task<void> task) {
  return spawn(std::move(task), {});
}

DTRAIN_DEFINED TaskHandle EventLoop::spawn(Task<void> task, ExceptionHandler on_exception,
                                           DestroyedHandler on_destroyed) {
  if (closed_) {
    throw_error(Errc::cancelled, "starting a task: the event loop has ended");
  }
  if (!task) {
    throw_error(Errc::invalid_argument, "starting a task that was moved from");
  }
  auto record = std::make_unique<TaskRecord>(std::move(task), std::move(on_exception), std::move(on_destroyed));
  scheduler_.start(*record);
  return TaskHandle(record.release());
}

DTRAIN_DEFINED void EventLoop::spawn_detached(Task<void> task, ExceptionHandler on_exception) {
  spawn(std::move(task), std::move(on_exception)).detach();
}

DTRAIN_DEFINED void EventLoop::close() noexcept {
  closed_ = true;
  posts_.close();
  scheduler_.destroy_all();
}

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
