#pragma once
/// @file
/// async::WorkerThread: a thread for one blocking work function at a time.

#include <atomic>
#include <cstdint>

#include "dtrain/async/thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Runs one work function at a time, for which one thread then waits. Blocks its signals, including SIGPIPE, which a
/// library may raise. Threads: start(), wait() and destruction one at a time.
/// Lifetime: destruction blocks until the running work has ended; the owner makes it end.
class WorkerThread {
 public:
  /// @throws Error if the system cannot start a thread
  WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;
  ~WorkerThread();

  /// Starts `work()`, which does not throw. Lifetime: until wait() returns true.
  template <class Work>
  void start(Work& work) noexcept {
    static_assert(noexcept(work()), "dtrain: nothing may be thrown on a channel's thread");
    object_ = &work;
    work_ = [](void* object) noexcept { (*static_cast<Work*>(object))(); };
    post();
  }

  /// Blocking: until the started work is done, or the deadline passes. @returns whether it is done
  bool wait(Deadline deadline) const noexcept;

 private:
  void post() noexcept {
    started_.fetch_add(1, std::memory_order_release);
    futex_wake(started_, 1, FutexScope::process);
  }

  void main() noexcept;

  void (*work_)(void*) noexcept = nullptr;
  void* object_ = nullptr;
  std::atomic<std::uint32_t> started_{0};
  std::atomic<std::uint32_t> done_{0};
  JoiningThread thread_;  ///< last: joined before the other members are destroyed
};

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::async {

DTRAIN_DEFINED WorkerThread::WorkerThread() : thread_(start_thread("a channel's thread", [this] { main(); })) {}

DTRAIN_DEFINED WorkerThread::~WorkerThread() {
  work_ = nullptr;
  post();
}

DTRAIN_DEFINED bool WorkerThread::wait(Deadline deadline) const noexcept {
  const std::uint32_t started = started_.load(std::memory_order_relaxed);
  for (;;) {
    const std::uint32_t done = done_.load(std::memory_order_acquire);
    if (done == started) {
      return true;
    }
    if (futex_wait(done_, done, deadline, FutexScope::process) == FutexResult::timed_out) {
      return done_.load(std::memory_order_acquire) == started;
    }
  }
}

DTRAIN_DEFINED void WorkerThread::main() noexcept {
  for (std::uint32_t next = 1;; ++next) {
    while (started_.load(std::memory_order_acquire) != next) {
      futex_wait(started_, next - 1, Deadline::unbounded("the destructor posts an end"), FutexScope::process);
    }
    if (work_ == nullptr) {
      return;
    }
    work_(object_);
    done_.store(next, std::memory_order_release);
    futex_wake(done_, 1, FutexScope::process);
  }
}

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
