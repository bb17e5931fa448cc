#pragma once
/// @file
/// async::start_thread(): a thread with all signals blocked. JoiningThread: joined by its destructor. WorkerThread:
/// runs one blocking function at a time.

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Blocks every signal in this thread for a scope. A thread started in the scope inherits the mask, and so does not
/// affect the program's handlers and signalfds.
class BlockedSignals {
 public:
  BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before_, nullptr)); }

 private:
  sigset_t before_{};
};

/// std::jthread without a stop token: libc++ has std::jthread since version 18, and only as an experimental part before
/// version 20. Destruction and assignment to it block until the thread has ended; the owner makes the thread end.
class JoiningThread {
 public:
  JoiningThread() noexcept = default;
  explicit JoiningThread(std::thread thread) noexcept : thread_(std::move(thread)) {}
  JoiningThread(JoiningThread&&) noexcept = default;
  JoiningThread& operator=(JoiningThread&& other) noexcept {
    std::thread next = std::move(other.thread_);
    join();
    thread_ = std::move(next);
    return *this;
  }
  ~JoiningThread() { join(); }

  /// Gives the ownership up: the thread runs on by itself.
  void detach() { thread_.detach(); }

  /// Blocking: until the thread has ended. Does nothing if there is none.
  void join() noexcept {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  std::thread thread_;
};

/// Runs `main()` on a new thread with all signals blocked, so that the program's handlers run in the program's threads.
/// @param what names the thread in the error: "a channel's thread"
/// @throws Error (posix) if the system cannot start a thread
JoiningThread start_thread(std::string_view what, std::function<void()> main);

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

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED BlockedSignals::BlockedSignals() {
  sigset_t all;
  static_cast<void>(::sigfillset(&all));
  const int error = ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  if (error != 0) {
    throw_posix(error, "blocking signals");
  }
}

DTRAIN_DEFINED JoiningThread start_thread(std::string_view what, std::function<void()> main) {
  const BlockedSignals blocked;
  try {
    return JoiningThread(std::thread(std::move(main)));
  } catch (const std::system_error& failure) {
    throw Error(failure.code(), format_text("starting {}: {}{}", {what, failure.what(), limit_hint(ENOMEM)}));
  }
}

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

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::async
