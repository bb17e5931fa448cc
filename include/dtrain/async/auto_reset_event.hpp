#pragma once
/// @file
/// async::AutoResetEvent: each set lets one coroutine pass.

#include "dtrain/async/loop/event_loop.hpp"

namespace DTRAIN_NAMESPACE::async {

/// set() wakes the longest waiter. Without waiters it lets the next one pass; several such sets count once. A set
/// granted to a waiter that is destroyed before it runs passes to the next. Lifetime: outlives its waiters. Threads:
/// the loop's.
class AutoResetEvent {
 public:
  class Awaiter;

  explicit AutoResetEvent(EventLoop& loop) noexcept : scheduler_(loop.scheduler()) {}

  inline void set() noexcept;
  bool is_set() const noexcept { return set_; }

  /// `co_await event.wait(deadline)`: WakeReason::ready for a waiter that got a set, or WakeReason::timed_out.
  inline Awaiter wait(Deadline deadline) noexcept;

 private:
  Scheduler& scheduler_;
  IntrusiveList<Awaiter> waiters_;
  bool set_ = false;
};

class [[nodiscard]] AutoResetEvent::Awaiter : public Waiter {
 public:
  Awaiter(AutoResetEvent& event, Deadline deadline) noexcept : event_(event), deadline_(deadline) {}
  ~Awaiter() {
    event_.scheduler_.remove(*this);
    if (granted_) {
      event_.set();
    }
  }

  bool await_ready() noexcept { return std::exchange(event_.set_, false); }
  void await_suspend(std::coroutine_handle<> parent) {
    event_.scheduler_.add(*this, parent, deadline_);
    event_.waiters_.push_back(*this);
  }
  WakeReason await_resume() noexcept {
    granted_ = false;
    return outcome;
  }

 private:
  friend AutoResetEvent;

  AutoResetEvent& event_;
  Deadline deadline_;
  bool granted_ = false;  ///< a set that has not been used
};

inline void AutoResetEvent::set() noexcept {
  if (Awaiter* waiter = waiters_.front()) {
    waiter->granted_ = true;
    scheduler_.wake(*waiter);
  } else {
    set_ = true;
  }
}

inline AutoResetEvent::Awaiter AutoResetEvent::wait(Deadline deadline) noexcept {
  return {*this, deadline};
}

}  // namespace DTRAIN_NAMESPACE::async
