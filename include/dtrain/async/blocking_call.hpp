#pragma once
/// @file
/// One task that a thread runs on another thread's EventLoop and waits for.

#include <condition_variable>
#include <mutex>
#include <type_traits>
#include <utility>

#include "dtrain/async/event_loop.hpp"
#include "dtrain/core/block_until.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Lives on the stack of the thread that waits. start(), then wait_until() or cancel() until one of them has said that
/// nothing on the loop's thread refers to it any more.
template <class T>
class BlockingCall {
 public:
  BlockingCall() = default;
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

  /// Posts the task. `make` outlives it.
  template <class Make>
  void start(EventLoop& loop, Make& make) {
    expect(1);
    loop.post([guard = Reference(*this), &loop, &make, this]() mutable { begin(loop, make, guard); });
  }

  /// Whether the task was gone by the deadline. Blocking: until then.
  bool wait_until(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return block_until(changed_, lock, deadline, [this] { return references_ == 0; });
  }

  /// Destroys the task on the loop's thread. Blocking: until that has happened, for as long as a coroutine or a posted
  /// function keeps that thread busy.
  void cancel(EventLoop& loop) {
    expect(1);
    loop.post([guard = Reference(*this), this] { owner_.cancel(); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return references_ == 0; });
  }

  bool done() const noexcept { return outcome_.done(); }
  T take() { return outcome_.take(); }

 private:
  /// What the loop holds while it may still touch the call.
  class Reference {
   public:
    explicit Reference(BlockingCall& call) noexcept : call_(&call) {}
    Reference(Reference&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
    Reference& operator=(Reference&&) = delete;
    ~Reference() { release(); }
    BlockingCall* hand_over() noexcept { return std::exchange(call_, nullptr); }
    void release() noexcept {
      if (BlockingCall* call = hand_over()) {
        call->dropped();
      }
    }

   private:
    BlockingCall* call_;
  };

  void expect(int more) {
    const std::lock_guard lock(mutex_);
    references_ += more;
  }

  /// Notifies under the lock: the waiting thread destroys the call as soon as it sees zero.
  void dropped() noexcept {
    const std::lock_guard lock(mutex_);
    if (--references_ == 0) {
      changed_.notify_all();
    }
  }

  template <class Make>
  void begin(EventLoop& loop, Make& make, Reference& guard) {
    try {
      owner_ = loop.spawn(store_outcome(make(loop), outcome_), {}, [this] { gone(); });
      guard.hand_over();  // the task has it now; gone() drops it
    } catch (...) {
      outcome_.fail(std::current_exception());
    }
  }

  /// Runs on the loop's thread when the frame is destroyed.
  void gone() noexcept {
    owner_.detach();  // frees the record here, not on the waiting thread
    dropped();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int references_ = 0;  ///< guarded by mutex_
  Outcome<T> outcome_;  ///< the loop's thread writes it while it holds a reference
  Spawned owner_;       ///< the loop's thread only
};

}  // namespace DTRAIN_NAMESPACE::async
