#pragma once
/// @file
/// CommunicationStream: the host stream for the communication of a group or a DDP instance, which SharedMemory, Gloo
/// and Mpi name as their stream; HelperThread: drains its queue while the program computes, if Driver starts it.

#include <memory>
#include <optional>
#include <utility>

#include "dtrain/async/thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/host/queue.hpp"
#include "dtrain/stream/host/stream_ref.hpp"
#include "dtrain/stream/host/stream_registry.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// The thread sleeps while the queue is empty; an enqueue wakes a sleeping thread with one futex call. At most one
/// thread per queue. Destruction lets the running work end and leaves the rest to waiting threads. Lifetime: the queue
/// outlives the thread.
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

/// Owns a Queue and, after start_helper(), the thread that drains it. Movable; references stay valid. Threads: one at a
/// time; references as StreamRef. Lifetime: outlives its references; destruction drops work that has not run.
/// @ingroup streams
class CommunicationStream {
 public:
  CommunicationStream();

  StreamRef ref() const noexcept { return owned_->queue.ref(); }

  /// Starts a thread that runs the work; a second call does nothing. @throws Error if the system cannot start a thread.
  void start_helper();

  /// Blocking: until the running work has ended. Waiting threads run the remaining work.
  void stop_helper() noexcept { owned_->helper.reset(); }

  /// Registers the stream as one of the rank's streams. Its work runs in the background while the rank is blocked
  /// elsewhere.
  void register_with(std::shared_ptr<StreamRegistry> registry);

  bool has_helper() const noexcept { return owned_->helper.has_value(); }

 private:
  struct QueueAndHelper {
    Queue queue;
    std::optional<StreamRegistry::Registration> registration;
    std::optional<HelperThread> helper;
  };

  std::unique_ptr<QueueAndHelper> owned_;
};

#if DTRAIN_DEFINITIONS

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

DTRAIN_DEFINED CommunicationStream::CommunicationStream() : owned_(std::make_unique<QueueAndHelper>()) {}

DTRAIN_DEFINED void CommunicationStream::start_helper() {
  if (!owned_->helper) {
    owned_->helper.emplace(owned_->queue);
  }
}

DTRAIN_DEFINED void CommunicationStream::register_with(std::shared_ptr<StreamRegistry> registry) {
  owned_->registration.emplace(std::move(registry), owned_->queue);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::stream::host
