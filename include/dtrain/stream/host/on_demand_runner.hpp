#pragma once
/// @file
/// OnDemandRunner: a thread started to run a host queue's work that no other thread runs.

#include <atomic>
#include <thread>

#include "dtrain/async/joining_thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/stream/host/queue.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Starts on demand and ends when the queue is empty; an idle one costs neither thread nor memory.
/// Lifetime: the queue outlives it. Threads: `start_if_idle` one at a time.
class OnDemandRunner {
 public:
  explicit OnDemandRunner(Queue& queue) noexcept : queue_(queue) {}
  OnDemandRunner(const OnDemandRunner&) = delete;
  OnDemandRunner& operator=(const OnDemandRunner&) = delete;

  /// Leaves work that has not run. Blocking: until the running work has ended, by a deadline of its own.
  ~OnDemandRunner() { stops_.store(true); }

  /// Starts the thread if the queue has work that no thread runs. Does not block. If the system cannot start a thread,
  /// the work is left to waiting threads; a later call tries again.
  void start_if_idle() noexcept;

 private:
  void main() noexcept;

  Queue& queue_;
  std::atomic<bool> running_{false};
  std::atomic<bool> stops_{false};
  async::JoiningThread thread_;  ///< last: joined before the other members are destroyed
};

}  // namespace DTRAIN_NAMESPACE::stream::host

#if DTRAIN_DEFINITIONS

#include "dtrain/async/blocked_signals.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

DTRAIN_DEFINED void OnDemandRunner::start_if_idle() noexcept {
  if (running_.load() || !queue_.has_unattended_work()) {
    return;
  }
  running_.store(true);
  try {
    const async::BlockedSignals blocked;  // the user's signal handlers run in the user's threads
    thread_ = async::JoiningThread(std::thread([this] { main(); }));  // the previous thread has ended
  } catch (...) {
    running_.store(false);
  }
}

DTRAIN_DEFINED void OnDemandRunner::main() noexcept {
  queue_.run_up_to(Queue::no_waiter, [this] { return !stops_.load(); });
  running_.store(false);
}

}  // namespace DTRAIN_NAMESPACE::stream::host

#endif  // DTRAIN_DEFINITIONS
