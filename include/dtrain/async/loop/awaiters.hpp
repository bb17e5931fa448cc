#pragma once
/// @file
/// Awaiters of the event loop: timers and descriptors.

#include <coroutine>

#include "dtrain/async/loop/scheduler.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Waits until its deadline.
class [[nodiscard]] SleepAwaiter : public Waiter {
 public:
  SleepAwaiter(Scheduler& scheduler, Deadline deadline) noexcept : scheduler_(scheduler), deadline_(deadline) {}
  ~SleepAwaiter() { scheduler_.remove(*this); }

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> parent) { scheduler_.add(*this, parent, deadline_); }
  void await_resume() const noexcept {}

 private:
  Scheduler& scheduler_;
  Deadline deadline_;
};

/// Waits until its descriptor is ready or its deadline passes.
class [[nodiscard]] DescriptorAwaiter : public Waiter {
 public:
  DescriptorAwaiter(Scheduler& scheduler, int fd, Interest interest, Deadline deadline) noexcept
      : scheduler_(scheduler), fd_(fd), interest_(interest), deadline_(deadline) {}
  ~DescriptorAwaiter() { scheduler_.remove(*this); }

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> parent) { scheduler_.add(*this, parent, deadline_, fd_, interest_); }
  WakeReason await_resume() const noexcept { return outcome; }

 private:
  Scheduler& scheduler_;
  int fd_;
  Interest interest_;
  Deadline deadline_;
};

}  // namespace DTRAIN_NAMESPACE::async
