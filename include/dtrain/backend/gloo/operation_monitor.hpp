#pragma once
/// @file
/// OperationMonitor: looks from another thread whether an operation that blocks in Gloo has to end.

#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "dtrain/async/worker_thread.hpp"
#include "dtrain/core/block_until.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend::gloo {

/// The monitor's questions about an operation. Threads: the monitor's.
class MonitoredOperation {
 public:
  /// Ends the operation if it has to end. @returns whether it had to
  virtual bool end_if_cancelled() noexcept = 0;
  /// See message_passing::CancellationToken.
  virtual void stalled() noexcept = 0;

 protected:
  ~MonitoredOperation() = default;
};

/// A thread that blocks in Gloo can look neither at its deadline nor at other streams. The monitor does that for it:
/// every 2 to 20 ms while operations follow one another; else its thread sleeps, and the next operation wakes it.
/// Threads: all members from one at a time. Lifetime: the worker outlives it, and does nothing else before stop().
class OperationMonitor {
 public:
  explicit OperationMonitor(async::WorkerThread& worker) noexcept : worker_(worker) {}
  OperationMonitor(const OperationMonitor&) = delete;
  OperationMonitor& operator=(const OperationMonitor&) = delete;

  /// Lifetime: `operation` until end().
  void begin(MonitoredOperation& operation) noexcept {
    bool starts = false;
    {
      const std::lock_guard lock(mutex_);
      operation_ = &operation;
      ++number_;
      starts = !std::exchange(monitors_, true);
    }
    if (starts) {
      static_cast<void>(worker_.wait(Deadline::unbounded("the monitor has decided to return")));
      worker_.start(run_);
    }
  }

  void end() noexcept {
    const std::lock_guard lock(mutex_);
    operation_ = nullptr;
  }

  /// Blocking: until the worker is free for other work. No operation begins afterwards.
  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    static_cast<void>(worker_.wait(Deadline::unbounded("the monitor returns when it is stopped")));
  }

 private:
  static constexpr std::chrono::milliseconds shortest_interval{2};
  static constexpr std::chrono::milliseconds longest_interval{20};
  static constexpr int idle_looks = 10;  ///< without an operation, until the monitor returns

  struct MonitorRun {
    OperationMonitor& monitor;
    void operator()() const noexcept { monitor.run(); }
  };

  void run() noexcept {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = number_;
    std::chrono::milliseconds interval = shortest_interval;
    int idle = 0;
    while (!stopped_ && idle < idle_looks) {
      block_until(changed_, lock, Deadline::after(interval), [this] { return stopped_; });
      const bool is_new = std::exchange(seen, number_) != number_;
      idle = operation_ != nullptr || is_new ? 0 : idle + 1;
      interval = is_new ? shortest_interval : longest_interval;
      if (operation_ != nullptr && !is_new && !operation_->end_if_cancelled()) {
        operation_->stalled();
      }
    }
    monitors_ = false;
  }

  async::WorkerThread& worker_;
  MonitorRun run_{*this};
  std::mutex mutex_;
  std::condition_variable changed_;
  MonitoredOperation* operation_ = nullptr;
  std::uint64_t number_ = 0;  ///< of operations begun
  bool monitors_ = false;
  bool stopped_ = false;
};

/// A scope in which SIGPIPE does not reach the thread: Gloo writes to connections that a peer may have closed.
class BlockedPipeSignal {
 public:
  BlockedPipeSignal() noexcept {
    static_cast<void>(::sigemptyset(&pipe_));
    static_cast<void>(::sigaddset(&pipe_, SIGPIPE));
    blocked_ = ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_) == 0 && ::sigismember(&before_, SIGPIPE) == 0;
  }
  BlockedPipeSignal(const BlockedPipeSignal&) = delete;
  BlockedPipeSignal& operator=(const BlockedPipeSignal&) = delete;

  /// Takes a signal of the scope, and lets the thread have later ones.
  ~BlockedPipeSignal() {
    if (blocked_) {
      sigset_t pending;
      const timespec now{};
      if (::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 1) {
        static_cast<void>(::sigtimedwait(&pipe_, nullptr, &now));
      }
      static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before_, nullptr));
    }
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool blocked_ = false;
};

}  // namespace DTRAIN_NAMESPACE::backend::gloo
