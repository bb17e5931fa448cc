#pragma once
/// @file
/// async::ManualResetEvent: a flag that coroutines of one loop wait for.

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Stays set, and wakes every waiter, until reset.
/// Lifetime: outlives its waiters; a waiter that is destroyed removes itself.
/// Threads: the loop's; other threads post a function that sets it.
class ManualResetEvent {
 public:
  class Awaiter;

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
  inline Awaiter wait(Deadline deadline) noexcept;

 private:
  Scheduler& scheduler_;
  IntrusiveList<Waiter> waiters_;
  bool set_ = false;
};

class [[nodiscard]] ManualResetEvent::Awaiter : public Waiter {
 public:
  Awaiter(ManualResetEvent& event, Deadline deadline) noexcept
      : event_(event), scheduler_(event.scheduler_), deadline_(deadline) {}
  ~Awaiter() { scheduler_.remove(*this); }

  bool await_ready() const noexcept { return event_.set_; }
  void await_suspend(std::coroutine_handle<> parent) {
    scheduler_.add(*this, parent, deadline_);
    event_.waiters_.push_back(*this);
  }
  WakeReason await_resume() const noexcept { return outcome; }

 private:
  ManualResetEvent& event_;
  Scheduler& scheduler_;
  Deadline deadline_;
};

inline ManualResetEvent::Awaiter ManualResetEvent::wait(Deadline deadline) noexcept {
  return {*this, deadline};
}

}  // namespace DTRAIN_NAMESPACE::async
