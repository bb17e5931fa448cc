#pragma once
/// @file
/// async::EventLoop: runs coroutines in one thread; awaiters of timers and descriptors. PostQueue: functions that other
/// threads post.

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/async/loop/scheduler.hpp"
#include "dtrain/async/task.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Waits until its descriptor is ready or its deadline passes.
class [[nodiscard]] DescriptorAwaiter : public DeadlineAwaiter {
 public:
  DescriptorAwaiter(Scheduler& scheduler, int fd, Interest interest, Deadline deadline) noexcept
      : DeadlineAwaiter(scheduler, deadline), fd_(fd), interest_(interest) {}

  void await_suspend(std::coroutine_handle<> parent) { scheduler_.add(*this, parent, deadline_, fd_, interest_); }

 private:
  int fd_;
  Interest interest_;
};

/// A function without parameters or result, move-only ones included.
class PostedFunction {
 public:
  PostedFunction() = default;
  PostedFunction(const PostedFunction&) = delete;
  PostedFunction& operator=(const PostedFunction&) = delete;
  virtual ~PostedFunction() = default;
  virtual void run() = 0;
};

/// Threads: push, wake and close from any thread; other functions from the loop's.
class PostQueue {
 public:
  PostQueue();

  int descriptor() const noexcept { return wakeup_.get(); }

  /// Appends a function. Returns false, with the function destroyed in this thread, once the queue is closed.
  template <class F>
  bool push(F function) {
    struct Holder final : PostedFunction {
      explicit Holder(F&& given) : held(std::move(given)) {}
      void run() override { held(); }
      F held;
    };
    return push_item(new Holder(std::move(function)));
  }

  /// Makes the eventfd readable.
  void wake() noexcept;

  /// Makes the eventfd unreadable and runs the functions pushed so far. An exception of a function leaves at once; the
  /// functions after it stay for the next call.
  void run_all();

  /// Whether functions remain after an exception.
  bool unfinished() const noexcept { return next_ < taken_.size(); }

  /// Rejects functions from now on and destroys those not yet run.
  void close() noexcept;

 private:
  /// Owns `pushed`, which is a raw pointer so that no unique_ptr is compiled for each F.
  bool push_item(PostedFunction* pushed);

  Descriptor wakeup_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PostedFunction>> items_;
  std::vector<std::unique_ptr<PostedFunction>> taken_;  ///< functions that the loop has taken
  std::size_t next_ = 0;                                ///< index in taken_ of the first that has not run
  bool closed_ = false;
};

/// Runs tasks in the thread that calls run() or run_until(). Other threads use post().
/// Threads: post, stop and on_loop_thread from any; other functions on the thread that runs the loop, or on any while
/// no thread runs it. Lifetime: outlives every awaiter, ManualResetEvent and socket made for it; destruction destroys
/// its remaining tasks.
class EventLoop {
 public:
  EventLoop() : scheduler_(posts_.descriptor()) {}
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop() { close(); }
  /// Adds a task, which starts in the loop's next turn. The result owns it; TaskHandle::detach gives it to the loop.
  /// @param on_exception gets an exception that leaves the task; without a handler it leaves run() or run_until()
  /// @param on_destroyed runs after the task's frame is destroyed, however the task ended
  /// @throws Error (cancelled) once the loop is closed
  [[nodiscard]] TaskHandle spawn(Task<void> task);
  [[nodiscard]] TaskHandle spawn(Task<void> task, ExceptionHandler on_exception, DestroyedHandler on_destroyed = {});

  /// As spawn(), owned by the loop.
  void spawn_detached(Task<void> task, ExceptionHandler on_exception = {}) {
    spawn(std::move(task), std::move(on_exception)).detach();
  }
  /// Runs `function()` on the loop's thread, in order of posting. Its exception leaves run(). After close() it returns
  /// false and destroys the function without running it; close() destroys functions that have not run.
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
    DeadlineAwaiter timer(scheduler_, deadline);
    timer.await_suspend(std::noop_coroutine());  // wakes the loop
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
  DeadlineAwaiter sleep_until(Deadline deadline) noexcept { return {scheduler_, deadline}; }
  DeadlineAwaiter sleep_for(Deadline::Clock::duration time) noexcept { return {scheduler_, Deadline::after(time)}; }

  /// `co_await loop.readable(fd, deadline)`: WakeReason::ready when a read would not block (also at the end of the
  /// stream and on errors), or WakeReason::timed_out. Several coroutines may wait for one descriptor. With a past
  /// deadline it checks once. Lifetime: the descriptor stays open while a coroutine waits for it.
  /// @throws Error (posix) at the await if epoll rejects the descriptor
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

  /// Destroys all tasks, and rejects new tasks and posts. The destructor calls it. Not from inside run().
  void close() noexcept;

  /// Number of descriptors and timers that coroutines wait for: for tests and diagnosis.
  std::size_t registered_descriptors() const noexcept { return scheduler_.registered_descriptors(); }
  std::size_t pending_timers() const noexcept { return scheduler_.pending_timers(); }

  /// For the implementation of awaiters.
  Scheduler& scheduler() noexcept { return scheduler_; }

 private:
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

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED PostQueue::PostQueue() : wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wakeup_) {
    throw errno_error("creating an eventfd", "raise the limit of open files (ulimit -n)");
  }
}

DTRAIN_DEFINED bool PostQueue::push_item(PostedFunction* pushed) {
  std::unique_ptr<PostedFunction> item(pushed);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return false;
    }
    items_.push_back(std::move(item));
    if (items_.size() > 1) {
      return true;  // the thread that pushed the first function wakes the loop
    }
  }
  wake();
  return true;
}

DTRAIN_DEFINED void PostQueue::run_all() {
  std::uint64_t count = 0;
  while (::read(wakeup_.get(), &count, sizeof count) < 0 && errno != EAGAIN) {
    if (errno != EINTR) {
      throw_errno("reading the wake-up descriptor of an event loop");  // otherwise it stays readable
    }
  }
  {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<PostedFunction>& item : items_) {
      taken_.push_back(std::move(item));
    }
    items_.clear();
  }
  while (unfinished()) {
    const std::unique_ptr<PostedFunction> item = std::move(taken_[next_++]);
    item->run();
  }
  taken_.clear();
  next_ = 0;
}

DTRAIN_DEFINED void PostQueue::close() noexcept {
  std::vector<std::unique_ptr<PostedFunction>> dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(items_);
  }
  dropped.clear();
  taken_.clear();
  next_ = 0;
}

DTRAIN_DEFINED void PostQueue::wake() noexcept {
  const std::uint64_t one = 1;
  while (::write(wakeup_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
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

DTRAIN_DEFINED void EventLoop::close() noexcept {
  closed_ = true;
  posts_.close();
  scheduler_.destroy_all();
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::async
