#pragma once
/// @file
/// async::EventLoop: one thread that runs coroutines.

#include <pthread.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/async/loop/awaiters.hpp"
#include "dtrain/async/loop/post_queue.hpp"
#include "dtrain/async/task/outcome.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Runs tasks in the thread that calls run() or run_until(). Others (LoopThread) talk to it through post().
/// Threads: post, stop and on_loop_thread from any thread; everything else on the thread that runs it, or on any while
/// none does.
/// Lifetime: outlives every awaiter, ManualResetEvent and socket made for it; destroying it destroys the tasks it still
/// has.
class EventLoop {
 public:
  EventLoop() : scheduler_(posts_.descriptor()) {}
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop() { close(); }

  /// Adds a task; it starts in the loop's next turn, and its owner is the result (TaskHandle::detach gives it to the
  /// loop).
  /// @param on_exception gets what leaves the task; without it, the exception leaves run() or run_until()
  /// @param on_destroyed runs after the task's frame is destroyed, however it ended
  /// @throws Error (cancelled) once the loop is closed
  [[nodiscard]] TaskHandle spawn(Task<void> task, ExceptionHandler on_exception = {},
                                 DestroyedHandler on_destroyed = {}) {
    if (closed_) {
      throw Error(Errc::cancelled, "starting a task: the event loop has ended");
    }
    if (!task) {
      throw Error(Errc::invalid_argument, "starting a task that was moved from");
    }
    auto record = std::make_unique<TaskRecord>(std::move(task), std::move(on_exception), std::move(on_destroyed));
    scheduler_.start(*record);
    return TaskHandle(record.release());
  }

  /// spawn, kept by the loop.
  void spawn_detached(Task<void> task, ExceptionHandler on_exception = {}) {
    spawn(std::move(task), std::move(on_exception)).detach();
  }

  /// Runs `function()` on the loop's thread, in order of posting. What it throws leaves run(). False, with the function
  /// destroyed unrun, once the loop is closed; what is posted and not run by then is destroyed unrun too.
  /// Threads: any. Costs an allocation, a short lock, and a system call where the queue was empty.
  template <class F>
  bool post(F function) {
    return posts_.push(std::move(function));
  }

  /// Runs until stop(). Blocking: without a deadline, because stop() ends it from any thread.
  /// @throws Error (invalid_argument) if the loop is running already; what a task without a handler or a posted
  /// function threw (the loop can then be run again)
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
  /// @param doing begins the sentence of a timeout
  /// @throws what the task threw; Error (timeout); Error (cancelled) after stop(); and what run() throws
  template <class T>
  T run_until(Task<T> task, Deadline deadline, std::string_view doing = "running a task") {
    Outcome<T> outcome;
    DeadlineTimer timer(scheduler_, deadline);
    TaskHandle owner = spawn(store_outcome(std::move(task), outcome));
    drive([&] { return owner.done() || deadline.passed(); });
    if (!owner.done()) {
      owner.cancel();
      const bool late = deadline.passed();
      throw Error(late ? Errc::timeout : Errc::cancelled,
                  std::string(doing) + (late ? ": the deadline passed" : ": the event loop was stopped"));
    }
    return outcome.take();
  }

  /// `co_await loop.sleep_until(deadline)`: always suspends, also for an instant that has passed.
  SleepAwaiter sleep_until(Deadline deadline) noexcept { return {scheduler_, deadline}; }
  SleepAwaiter sleep_for(Deadline::Clock::duration time) noexcept { return {scheduler_, Deadline::after(time)}; }

  /// `co_await loop.readable(fd, deadline)`: WakeReason::ready when a read would not block (also at its end and on
  /// errors), or WakeReason::timed_out. Several coroutines may wait for one descriptor. A deadline that has passed asks
  /// once. Lifetime: the descriptor stays open while a coroutine waits for it.
  /// @throws Error (posix) at the await where epoll refuses the descriptor
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

  /// Destroys all tasks and refuses new ones and posts; what the destructor does first. Not from inside run().
  void close() noexcept {
    closed_ = true;
    posts_.close();
    scheduler_.destroy_all();
  }

  /// How many descriptors and timers are waited for: for tests and diagnosis.
  std::size_t registered_descriptors() const noexcept { return scheduler_.registered_descriptors(); }
  std::size_t pending_timers() const noexcept { return scheduler_.pending_timers(); }

  /// For those who write awaiters.
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
      throw Error(Errc::invalid_argument, "running an event loop that is running already; await the task instead");
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
