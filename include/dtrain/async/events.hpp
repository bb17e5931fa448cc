#pragma once
/// @file
/// async::ManualResetEvent: wakes every waiting coroutine of a loop until it is reset. async::AutoResetEvent: each set
/// wakes one.

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Stays set, and wakes every waiter, until reset.
/// Lifetime: outlives its waiters; a waiter that is destroyed removes itself.
/// Threads: the loop's; other threads post a function that sets it.
class ManualResetEvent {
 public:
  class [[nodiscard]] Awaiter : public DeadlineAwaiter {
   public:
    Awaiter(ManualResetEvent& event, Deadline deadline) noexcept
        : DeadlineAwaiter(event.scheduler_, deadline), event_(event) {}

    bool await_ready() const noexcept { return event_.set_; }
    void await_suspend(std::coroutine_handle<> parent) {
      DeadlineAwaiter::await_suspend(parent);
      event_.waiters_.push_back(*this);
    }

   private:
    ManualResetEvent& event_;
  };

  explicit ManualResetEvent(EventLoop& loop) noexcept : scheduler_(loop.scheduler()) {}

  /// Wakes all waiters, in the order of waiting, in the loop's next turn.
  DTRAIN_NOT_INLINED void set() noexcept {
    set_ = true;
    while (Waiter* waiter = waiters_.front()) {
      scheduler_.wake(*waiter);
    }
  }
  void reset() noexcept { set_ = false; }
  bool is_set() const noexcept { return set_; }
  bool has_waiters() const noexcept { return !waiters_.empty(); }

  /// `co_await event.wait(deadline)`: WakeReason::ready once set (at once if it is), or WakeReason::timed_out.
  Awaiter wait(Deadline deadline) noexcept { return {*this, deadline}; }

 private:
  Scheduler& scheduler_;
  IntrusiveList<Waiter> waiters_;
  bool set_ = false;
};

/// set() wakes the longest waiter. Without waiters it lets the next one pass; several such sets count once. A set
/// granted to a waiter that is destroyed before it runs passes to the next. Lifetime: outlives its waiters. Threads:
/// the loop's.
class AutoResetEvent {
 public:
  class [[nodiscard]] Awaiter : public DeadlineAwaiter {
   public:
    Awaiter(AutoResetEvent& event, Deadline deadline) noexcept
        : DeadlineAwaiter(event.scheduler_, deadline), event_(event) {}
    ~Awaiter() {
      if (granted_) {
        event_.set();
      }
    }

    bool await_ready() noexcept { return std::exchange(event_.set_, false); }
    void await_suspend(std::coroutine_handle<> parent) {
      DeadlineAwaiter::await_suspend(parent);
      event_.waiters_.push_back(*this);
    }
    WakeReason await_resume() noexcept {
      granted_ = false;
      return outcome;
    }

   private:
    friend AutoResetEvent;

    AutoResetEvent& event_;
    bool granted_ = false;  ///< a set that has not been used
  };

  explicit AutoResetEvent(EventLoop& loop) noexcept : scheduler_(loop.scheduler()) {}

  void set() noexcept {
    if (Awaiter* waiter = waiters_.front()) {
      waiter->granted_ = true;
      scheduler_.wake(*waiter);
    } else {
      set_ = true;
    }
  }
  bool is_set() const noexcept { return set_; }

  /// `co_await event.wait(deadline)`: WakeReason::ready for a waiter that got a set, or WakeReason::timed_out.
  Awaiter wait(Deadline deadline) noexcept { return {*this, deadline}; }

 private:
  Scheduler& scheduler_;
  IntrusiveList<Awaiter> waiters_;
  bool set_ = false;
};

}  // namespace DTRAIN_NAMESPACE::async
