#pragma once
/// @file
/// Scheduler of an EventLoop: ready queue, timers and waiting coroutines; DeadlineAwaiter, the base of its awaiters.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/async/loop/poller.hpp"
#include "dtrain/async/task/task_handle.hpp"
#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::async {

/// The part of an EventLoop that awaiters use. Threads: the loop's.
class Scheduler {
 public:
  /// `wakeup` is readable when poll() is to return at once.
  explicit Scheduler(int wakeup) : poller_(wakeup) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// @name For awaiters
  /// @{

  /// Suspends `coroutine` at `waiter` until wake() or the deadline.
  DTRAIN_NOT_INLINED void add(Waiter& waiter, std::coroutine_handle<> coroutine, Deadline deadline) {
    waiter.coroutine = coroutine;
    waiter.record = current_;
    timers_.insert(waiter, deadline);
  }

  /// As add(), and also until the descriptor is ready. @throws Error (posix) if epoll refuses it
  void add(Waiter& waiter, std::coroutine_handle<> coroutine, Deadline deadline, int descriptor, Interest interest) {
    add(waiter, coroutine, deadline);
    poller_.add(waiter, descriptor, interest);
  }

  /// Resumes a waiter in the next turn, or in this one if it has not reached resume_ready().
  DTRAIN_NOT_INLINED void wake(Waiter& waiter, WakeReason outcome = WakeReason::ready) noexcept {
    remove(waiter);
    waiter.outcome = outcome;
    ready_.push_back(waiter);
  }

  /// Removes a waiter from everything that it waits in.
  DTRAIN_NOT_INLINED void remove(Waiter& waiter) noexcept {
    timers_.remove(waiter);
    poller_.remove(waiter);
    waiter.unlink();
  }
  /// @}

  /// Adds a record, which starts in the next turn.
  void start(TaskRecord& record) noexcept {
    record.start.coroutine = record.task.handle();
    record.start.record = &record;
    records_.push_back(record);
    ready_.push_back(record.start);
  }

  /// Waits for a ready descriptor or the next timer; returns at once with `return_at_once`. Descriptors come before
  /// timers, so that a ready descriptor wins over a deadline that has passed.
  /// @returns whether the wake-up descriptor is readable
  bool poll(bool return_at_once);

  /// Resumes the ready waiters. Waiters woken meanwhile wait for the next call, so that waiters that wake each other do
  /// not delay the others without end.
  /// @throws the exception of a task without a handler; the other waiters run in the next call
  void resume_ready();

  void destroy_all() noexcept {
    while (TaskRecord* record = records_.front()) {
      record->end();
    }
  }

  std::size_t registered_descriptors() const noexcept { return poller_.registered_count(); }
  std::size_t pending_timers() const noexcept { return timers_.size(); }

 private:
  int poll_timeout_ms() const;

  void resume(Waiter& waiter);

  static void retire(TaskRecord& record);

  Poller poller_;
  TimerHeap timers_;
  IntrusiveList<TaskRecord> records_;
  IntrusiveList<Waiter> ready_;
  IntrusiveList<Waiter> batch_;
  TaskRecord* current_ = nullptr;  ///< the task whose coroutine runs now
};

/// Waits until its deadline. Base of the other awaiters: destruction removes it from everything that it waits in.
class [[nodiscard]] DeadlineAwaiter : public Waiter {
 public:
  DeadlineAwaiter(Scheduler& scheduler, Deadline deadline) noexcept : scheduler_(scheduler), deadline_(deadline) {}
  ~DeadlineAwaiter() { scheduler_.remove(*this); }

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> parent) { scheduler_.add(*this, parent, deadline_); }
  WakeReason await_resume() const noexcept { return outcome; }

 protected:
  Scheduler& scheduler_;
  const Deadline deadline_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED bool Scheduler::poll(bool return_at_once) {
  const bool busy = return_at_once || !ready_.empty() || !batch_.empty();
  IntrusiveList<Waiter> ready;
  const bool woken = poller_.poll(busy ? 0 : poll_timeout_ms(), ready);
  while (Waiter* waiter = ready.front()) {
    wake(*waiter);
  }
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  for (Waiter* timer = timers_.earliest(); timer != nullptr && timer->instant <= now; timer = timers_.earliest()) {
    wake(*timer, WakeReason::timed_out);
  }
  return woken;
}

DTRAIN_DEFINED void Scheduler::resume_ready() {
  batch_.splice_back(ready_);
  while (Waiter* waiter = batch_.pop_front()) {
    resume(*waiter);
  }
}

DTRAIN_DEFINED int Scheduler::poll_timeout_ms() const {
  if (timers_.empty()) {
    return -1;
  }
  const auto left = Deadline::at(timers_.earliest()->instant).remaining();
  const auto longest = std::chrono::milliseconds(std::chrono::hours(1));
  return static_cast<int>(std::min(std::chrono::ceil<std::chrono::milliseconds>(left), longest).count());
}

DTRAIN_DEFINED void Scheduler::resume(Waiter& waiter) {
  TaskRecord* record = waiter.record;
  if (record == nullptr) {
    waiter.coroutine.resume();
    return;
  }
  current_ = record;
  record->busy = true;
  waiter.coroutine.resume();  // the waiter is in the coroutine's frame: do not use it from here on
  record->busy = false;
  current_ = nullptr;
  if (record->task.done() || record->abandoned) {
    retire(*record);
  }
}

DTRAIN_DEFINED void Scheduler::retire(TaskRecord& record) {
  std::exception_ptr exception;
  record.busy = true;  // the frame's parameters may own the TaskHandle
  if (record.task.done()) {
    try {
      record.task.take();
    } catch (...) {
      exception = std::current_exception();
    }
  }
  const ExceptionHandler handler = std::move(record.on_exception);
  record.end();
  if (exception && !handler) {
    std::rethrow_exception(exception);
  }
  if (exception) {
    handler(exception);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::async
