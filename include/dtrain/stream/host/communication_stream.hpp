#pragma once
/// @file
/// stream::host::CommunicationStream: owner of a host stream, which a HelperThread may drain. StreamRegistry of a rank:
/// waiting threads start its streams' unattended work, so that streams cannot deadlock.

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/async/thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/host/queue.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// A thread that starts on demand and ends when the queue is empty; an idle runner costs neither thread nor memory.
/// Lifetime: the queue outlives the runner. Threads: `start_if_idle` one at a time.
class OnDemandRunner {
 public:
  explicit OnDemandRunner(Queue& queue) noexcept : queue_(queue) {}
  OnDemandRunner(const OnDemandRunner&) = delete;
  OnDemandRunner& operator=(const OnDemandRunner&) = delete;

  /// Leaves work that has not run. Blocking: until the running work has ended, by the work's deadline.
  ~OnDemandRunner() { stops_.store(true); }

  /// Starts the thread if the queue has work that no thread runs. Does not block. If the system cannot start a thread,
  /// the work is left to waiting threads, and a later call tries again.
  void start_if_idle() noexcept;

 private:
  void main() noexcept;

  Queue& queue_;
  std::atomic<bool> running_{false};
  std::atomic<bool> stops_{false};
  async::JoiningThread thread_;  ///< last: joined before the other members are destroyed
};

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

/// Who enqueues on a stream: the program, by collectives that it gives the stream, or the steps of a wrapper.
enum class StreamKind { program, step };

/// A caller-runs stream makes no progress while its rank's thread waits inside another stream's operation. Example:
/// rank 0 waits in channel A for rank 1, and rank 1 waits in channel B for rank 0. Each rank has enqueued the work that
/// the other rank waits for, and no thread runs this work. Therefore a thread that waits long calls run_unattended()
/// repeatedly.
class StreamRegistry {
 public:
  /// A stream's registration, with the thread that runs it on demand. Not movable. Lifetime: queue and helper outlive
  /// it. Blocking: destruction waits for the work that its thread runs; see OnDemandRunner.
  class Registration {
   public:
    Registration(std::shared_ptr<StreamRegistry> registry, Queue& queue, std::optional<HelperThread>& helper,
                 StreamKind kind)
        : registry_(std::move(registry)), queue_(queue), helper_(helper), kind_(kind), runner_(queue) {
      registry_->add(*this);
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    ~Registration() { registry_->remove(*this); }

   private:
    friend class StreamRegistry;

    std::shared_ptr<StreamRegistry> registry_;
    Queue& queue_;
    std::optional<HelperThread>& helper_;
    const StreamKind kind_;
    OnDemandRunner runner_;
  };

  StreamRegistry() = default;
  StreamRegistry(const StreamRegistry&) = delete;
  StreamRegistry& operator=(const StreamRegistry&) = delete;

  /// Starts a thread for each stream that has work and no thread. Does not block. Allocates only to start a thread.
  void run_unattended() noexcept;

  /// The same for the program's streams alone. @returns whether one of them had such work
  bool run_unattended_of_program() noexcept;

  /// Starts a HelperThread for this stream, unless it has one. Does not block. @returns whether it has one now: false
  /// if the stream is not registered or the system cannot start a thread
  bool start_helper(const StreamRef& stream) noexcept;

 private:
  void add(Registration& stream);
  void remove(Registration& stream) noexcept;

  std::mutex mutex_;
  std::vector<Registration*> streams_;
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
  void register_with(std::shared_ptr<StreamRegistry> registry, StreamKind kind = StreamKind::program);

  bool has_helper() const noexcept { return owned_->helper.has_value(); }

 private:
  struct QueueAndHelper {
    Queue queue;
    std::optional<HelperThread> helper;
    std::optional<StreamRegistry::Registration> registration;
  };

  std::unique_ptr<QueueAndHelper> owned_;
};

#if DTRAIN_DEFINITIONS

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

DTRAIN_DEFINED void StreamRegistry::run_unattended() noexcept {
  const std::lock_guard lock(mutex_);
  for (Registration* stream : streams_) {
    stream->runner_.start_if_idle();
  }
}

DTRAIN_DEFINED bool StreamRegistry::run_unattended_of_program() noexcept {
  const std::lock_guard lock(mutex_);
  bool some = false;
  for (Registration* stream : streams_) {
    if (stream->kind_ != StreamKind::program || !stream->queue_.has_unattended_work()) continue;
    some = true;
    stream->runner_.start_if_idle();
  }
  return some;
}

DTRAIN_DEFINED bool StreamRegistry::start_helper(const StreamRef& stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [&](const Registration* each) { return each->queue_.ref() == stream; });
  if (found == streams_.end()) return false;
  try {
    if (!(*found)->helper_) (*found)->helper_.emplace((*found)->queue_);
  } catch (const Error&) {
    return false;
  }
  return true;
}

DTRAIN_DEFINED void StreamRegistry::add(Registration& stream) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(&stream);
}

DTRAIN_DEFINED void StreamRegistry::remove(Registration& stream) noexcept {
  const std::lock_guard lock(mutex_);
  streams_.erase(std::find(streams_.begin(), streams_.end(), &stream));
}

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

DTRAIN_DEFINED void CommunicationStream::register_with(std::shared_ptr<StreamRegistry> registry, StreamKind kind) {
  owned_->registration.emplace(std::move(registry), owned_->queue, owned_->helper, kind);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::stream::host
