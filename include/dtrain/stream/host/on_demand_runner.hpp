#pragma once
/// @file
/// A thread that runs a host queue's work once, where somebody waits for it and nobody runs it.

#include <atomic>
#include <thread>

#include "dtrain/async/blocked_signals.hpp"
#include "dtrain/stream/host/queue.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Starts on demand and ends when the queue is empty; an idle one costs neither thread nor memory.
/// Lifetime: the queue outlives it. Threads: `start_if_idle` one at a time.
class OnDemandRunner {
 public:
  explicit OnDemandRunner(Queue& queue) noexcept : queue_(queue) {}
  OnDemandRunner(const OnDemandRunner&) = delete;
  OnDemandRunner& operator=(const OnDemandRunner&) = delete;

  /// Lets the work that runs end and leaves the rest. Blocking: for as long as that takes; work ends by a deadline of
  /// its own.
  ~OnDemandRunner() { stops_.store(true); }

  /// Starts the thread where the queue has work that nobody runs. Blocking: no. Where no thread can be had the work
  /// stays for whoever waits, and who asks again is served again.
  void start_if_idle() noexcept {
    if (running_.load() || !queue_.has_unattended_work()) {
      return;
    }
    running_.store(true);
    try {
      const async::BlockedSignals blocked;         // the user's signal handlers run in the user's threads
      thread_ = std::jthread([this] { main(); });  // the one before has ended
    } catch (...) {
      running_.store(false);
    }
  }

 private:
  void main() noexcept {
    queue_.run_up_to(Queue::no_waiter, [this] { return !stops_.load(); });
    running_.store(false);
  }

  Queue& queue_;
  std::atomic<bool> running_{false};
  std::atomic<bool> stops_{false};
  std::jthread thread_;  ///< joined before what it uses goes
};

}  // namespace DTRAIN_NAMESPACE::stream::host
