#pragma once
/// @file
/// gloo::Transport: runs a channel's routines in the stream's thread, where Gloo blocks. OperationMonitor: a thread
/// that ends operations at deadlines or on cancellation.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/async/thread.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/failure/timeout_diagnosis.hpp"
#include "dtrain/backend/failure/wait_notice.hpp"
#include "dtrain/backend/gloo/endpoint.hpp"
#include "dtrain/backend/gloo/mesh.hpp"
#include "dtrain/backend/message_passing/transport.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::gloo {

/// The monitor's questions about an operation. Threads: the monitor's.
class MonitoredOperation {
 public:
  /// Ends the operation if it has to end. @returns whether the operation had to end
  virtual bool end_if_cancelled() noexcept = 0;
  /// See message_passing::CancellationToken.
  virtual void stalled() noexcept = 0;

 protected:
  ~MonitoredOperation() = default;
};

/// A thread that blocks in Gloo cannot check its deadline nor other streams. The monitor's thread does, every 2 to 20
/// ms while operations follow one another; otherwise it sleeps, and the next operation wakes it. Threads: one at a
/// time. Lifetime: the worker outlives the monitor, and does nothing else before stop().
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
  static constexpr int idle_looks = 10;  ///< looks without an operation, until the monitor returns

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
  std::uint64_t number_ = 0;  ///< number of operations begun
  bool monitors_ = false;
  bool stopped_ = false;
};

#if DTRAIN_WITH_GLOO

/// See message_passing::Transport. Gloo's waits block: the thread that runs the stream runs each routine from start to
/// end, and the channel's own thread watches it, checks the deadline, and interrupts it on cancellation.
class Transport final : private MonitoredOperation {
 public:
  using Endpoint = gloo::Endpoint;

  static constexpr const char* backend_name() noexcept { return "backend::Gloo"; }

  /// Collective, blocking. @throws Error (unsupported, closed, timeout, protocol), JobFailed
  Transport(const ChannelContext& context, const std::vector<int>& /*job_ranks*/, Deadline deadline)
      : failure_(context.failure), mesh_(std::make_unique<Mesh>(context, deadline)) {
    mesh_->exchange_addresses(context, deadline);
    connect(context, deadline);
    mesh_->await_all(context, deadline);
    endpoint_.emplace(*mesh_);
  }
  ~Transport() { close(true); }

  Endpoint& endpoint() noexcept { return *endpoint_; }

  /// Within a host, blocks go straight to the rank that reduces them, in chunks as long as Gloo's own, because the
  /// number of thread wake-ups dominates. Between hosts, chunks are shorter and more of them are in flight.
  static message_passing::Tuning tuning(const ChannelContext& context) noexcept {
    message_passing::Tuning tuning;
    if (context.members.node_count == 1) {
      tuning.direct_reduce_scatter = true;
      tuning.chunk_bytes = 1024 * 1024;
      tuning.chunks_in_flight = 2;
    }
    return tuning;
  }

  /// Blocking: until the routine is done, or `token` cancels it. @returns true: the operation's memory is free again
  bool run_blocking(message_passing::Routine& routine, message_passing::CancellationToken& token) noexcept {
    token_ = &token;
    {
      const BlockedWriteSignals blocked;  // Gloo writes to connections that a peer may have closed
      monitor_.begin(*this);
      routine.resume();
      monitor_.end();
    }
    if (!endpoint_->is_idle()) {
      cancel(routine);
    }
    return true;
  }

  std::pair<int, bool> waits_for() const noexcept { return endpoint_->waits_for(); }

  /// Threads: any. The running operation ends, and later ones do not start.
  void interrupt() noexcept { endpoint_->interrupt(); }

  /// Closes the connections, which ends the waits of peers for this rank.
  void close(bool /*clean*/) noexcept {
    monitor_.stop();
    if (endpoint_) {
      endpoint_->abandon();
    }
    mesh_.reset();
  }

 private:
  /// Wait for the job's first cause after a peer has closed its connection. The store may know of the lost rank half a
  /// second later (Limits::rejoin).
  static constexpr std::chrono::milliseconds grace{1200};

  /// Connects on the channel's thread; a failed job or the deadline interrupts it.
  void connect(const ChannelContext& context, Deadline deadline) {
    std::exception_ptr failed;
    auto work = [&]() noexcept {
      try {
        mesh_->connect();
      } catch (...) {
        failed = std::current_exception();
      }
    };
    WaitNotice notice(context.notice_after);
    const Deadline::Clock::time_point began = Deadline::Clock::now();
    worker_.start(work);
    while (!worker_.wait(Deadline::after(std::chrono::milliseconds(10)))) {
      if (deadline.passed() || context.failure->failed()) {
        mesh_->interrupt();
      }
      notice.update(context.reporting_rank(), Deadline::Clock::now() - began, [&](std::chrono::milliseconds after) {
        return format_text("{}, after {}; {}", {mesh_->doing(), duration_text(after), mesh_->unconnected()});
      });
      context.run_other_streams();
    }
    if (failed && !deadline.passed()) {  // a lost peer may be the job's first cause
      context.failure->block_until_failed(earlier(deadline, Deadline::after(grace)));
    }
    context.failure->throw_if_failed(context.reporting_rank());
    if (deadline.passed()) {
      throw_error(Errc::timeout, "{}: by the deadline {}", {mesh_->doing(), mesh_->unconnected()});
    }
    if (failed) {
      std::rethrow_exception(failed);
    }
  }

  /// Ends all use of the operation's memory, and closes the connections once the job has failed, because a message may
  /// be half received.
  void cancel(const message_passing::Routine& routine) noexcept {
    monitor_.stop();
    endpoint_->interrupt();
    endpoint_->abandon();
    try {
      if (routine.done()) {
        routine.check();
      }
    } catch (const Error& error) {
      if (error.code() == make_error_code(Errc::closed)) {
        failure_->block_until_failed(Deadline::after(grace));
      }
    } catch (...) {  // Channel reports it
    }
    worker_.start(close_connections_);
  }

  bool end_if_cancelled() noexcept override {
    const bool cancelled = token_->cancelled();
    if (cancelled) {
      endpoint_->interrupt();
    }
    return cancelled;
  }
  void stalled() noexcept override { token_->stalled(); }

  struct CloseConnections {
    Transport& transport;
    void operator()() const noexcept {
      // Peers learn the first cause before their connections are reset, and may time out in the same operation.
      transport.failure_->block_until_failed(Deadline::after(TimeoutDiagnosis<>::longest_wait + grace));
      transport.mesh_->interrupt();
    }
  };

  const std::shared_ptr<FailureLatch> failure_;
  std::unique_ptr<Mesh> mesh_;
  std::optional<Endpoint> endpoint_;
  message_passing::CancellationToken* token_ = nullptr;  ///< the running operation's token
  CloseConnections close_connections_{*this};
  async::WorkerThread worker_;  ///< destroyed first, after close() has stopped the monitor
  OperationMonitor monitor_{worker_};
};

static_assert(message_passing::Transport<Transport>);

#endif  // DTRAIN_WITH_GLOO

}  // namespace DTRAIN_NAMESPACE::backend::gloo
