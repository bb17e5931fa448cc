#pragma once
/// @file
/// async::AutoResetEvent: each set lets one coroutine pass. Loops of servers, sessions and launchers wait for one.

#include "dtrain/async/loop/event_loop.hpp"

namespace DTRAIN_NAMESPACE::async {

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
