#pragma once
/// @file
/// One task that a thread runs on another thread's EventLoop and waits for.

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/task/outcome.hpp"
#include "dtrain/core/block_until.hpp"

namespace DTRAIN_NAMESPACE::async {

/// What of a BlockingCall is the same for every result: compiled once.
class BlockingCallBase {
 public:
  BlockingCallBase(const BlockingCallBase&) = delete;
  BlockingCallBase& operator=(const BlockingCallBase&) = delete;

  /// Whether the task was destroyed by the deadline. Blocking: until then.
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

 protected:
  BlockingCallBase() = default;
  ~BlockingCallBase() = default;

  /// Posts the task that `task` makes.
  void post(EventLoop& loop) {
    expect(1);
    loop.post([guard = Reference(*this), &loop, this]() mutable { begin(loop, guard); });
  }

 private:
  /// What the loop holds while it may still touch the call.
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

  /// The task, which keeps its result. On the loop's thread.
  virtual Task<void> task(EventLoop& loop) = 0;
  /// Keeps the exception that came instead of a task. On the loop's thread.
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

/// Lives on the stack of the thread that waits. start(), then wait_until() or cancel() until one of them has said that
/// nothing on the loop's thread refers to it any more.
template <class T>
class BlockingCall final : public BlockingCallBase {
 public:
  /// Posts the task that `make(loop)` makes on the loop's thread. `make` outlives it.
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
