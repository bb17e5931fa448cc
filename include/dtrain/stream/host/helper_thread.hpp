#pragma once
/// @file
/// HelperThread: drains a host queue while the program computes.

#include "dtrain/async/joining_thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/stream/host/queue.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Sleeps while the queue is empty; an enqueue wakes it with one futex call, and only if it sleeps. At most one per
/// queue. Destruction lets the running work end and leaves the rest to waiting threads. Lifetime: the queue outlives
/// the thread.
class HelperThread {
 public:
  /// @throws Error if the system cannot start a thread
  explicit HelperThread(Queue& queue);
  HelperThread(const HelperThread&) = delete;
  HelperThread& operator=(const HelperThread&) = delete;
  ~HelperThread() {
    queue_.has_helper_.store(false);
    queue_.wake_helper();
  }

 private:
  void main() noexcept;

  Queue& queue_;
  async::JoiningThread thread_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host

#if DTRAIN_DEFINITIONS

#include "dtrain/async/start_thread.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

DTRAIN_DEFINED HelperThread::HelperThread(Queue& queue) : queue_(queue) {
  queue_.has_helper_.store(true);
  try {
    thread_ = async::start_thread("the communication helper thread", [this] { main(); });
  } catch (const Error& failure) {
    queue_.has_helper_.store(false);
    throw Error(failure.code(), format_text("{}; progress = caller needs no thread", {failure.what()}));
  }
}

DTRAIN_DEFINED void HelperThread::main() noexcept {
  const auto goes_on = [this] { return queue_.has_helper_.load(); };
  while (goes_on()) {
    queue_.run_up_to(Queue::no_waiter, goes_on);
    queue_.park_helper();
  }
}

}  // namespace DTRAIN_NAMESPACE::stream::host

#endif  // DTRAIN_DEFINITIONS
