#pragma once
/// @file
/// BlockingCall: a task on another thread's EventLoop, for which the calling thread waits.

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/task/outcome.hpp"
#include "dtrain/core/block_until.hpp"

namespace DTRAIN_NAMESPACE::async {

/// The part of BlockingCall that does not depend on the result type: compiled once.
class BlockingCallBase {
 public:
  BlockingCallBase(const BlockingCallBase&) = delete;
  BlockingCallBase& operator=(const BlockingCallBase&) = delete;

  /// Blocking: until the task is destroyed or the deadline passes. @returns whether it is destroyed
  bool wait_until(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return block_until(changed_, lock, deadline, [this] { return references_ == 0; });
  }

  /// Destroys the task on the loop's thread. Blocking: until then, also while that thread is busy.
  void cancel(EventLoop& loop) {
    expect(1);
    loop.post([guard = Reference(*this), this] { owner_.cancel(); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return references_ == 0; });
  }

 protected:
  BlockingCallBase() = default;
  ~BlockingCallBase() = default;

  /// Posts a call of task().
  void post(EventLoop& loop) {
    expect(1);
    loop.post([guard = Reference(*this), &loop, this]() mutable { begin(loop, guard); });
  }

 private:
  /// Reference that the loop holds while it may use the call.
  class Reference {
   public:
    explicit Reference(BlockingCallBase& call) noexcept : call_(&call) {}
    Reference(Reference&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
    Reference& operator=(Reference&&) = delete;
    ~Reference() { release(); }
    BlockingCallBase* transfer() noexcept { return std::exchange(call_, nullptr); }
    void release() noexcept {
      if (BlockingCallBase* call = transfer()) {
        call->dropped();
      }
    }

   private:
    BlockingCallBase* call_;
  };

  /// Makes the task that stores the result. On the loop's thread.
  virtual Task<void> task(EventLoop& loop) = 0;
  /// Stores the exception of making the task. On the loop's thread.
  virtual void fail(std::exception_ptr exception) = 0;

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

  void begin(EventLoop& loop, Reference& guard) {
    try {
      owner_ = loop.spawn(task(loop), {}, [this] { on_destroyed(); });
      guard.transfer();  // the task has it now; on_destroyed() drops it
    } catch (...) {
      fail(std::current_exception());
    }
  }

  /// Runs on the loop's thread when the frame is destroyed.
  void on_destroyed() noexcept {
    owner_.detach();  // frees the record here, not on the waiting thread
    dropped();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int references_ = 0;  ///< guarded by mutex_
  TaskHandle owner_;    ///< the loop's thread only
};

/// Lives on the stack of the waiting thread. Call start(), then wait_until(), and cancel() if that returns false.
/// Afterwards the loop's thread no longer uses the call.
template <class T>
class BlockingCall final : public BlockingCallBase {
 public:
  /// Posts a call of `make(loop)`, which makes the task on the loop's thread. Lifetime: `make` outlives the call.
  template <class Make>
  void start(EventLoop& loop, Make& make) {
    make_ = const_cast<void*>(static_cast<const void*>(&make));
    call_make_ = [](void* untyped, EventLoop& of) -> Task<T> { return (*static_cast<Make*>(untyped))(of); };
    post(loop);
  }

  bool done() const noexcept { return outcome_.done(); }
  T take() { return outcome_.take(); }

 private:
  Task<void> task(EventLoop& loop) override { return store_outcome(call_make_(make_, loop), outcome_); }
  void fail(std::exception_ptr exception) override { outcome_.fail(std::move(exception)); }

  void* make_ = nullptr;
  Task<T> (*call_make_)(void*, EventLoop&) = nullptr;
  Outcome<T> outcome_;  ///< the loop's thread writes it while it holds a reference
};

}  // namespace DTRAIN_NAMESPACE::async
