#pragma once
/// @file
/// OrderedChannel: base of channels that run operations in enqueue order, until the first cause of failure.
/// ChannelOwner: a communicator's share.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/failure/first_cause.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Reference-counted (retain, release) by the communicator and by each enqueued operation, which may outlive it.
/// Threads: run_in_order in the thread that runs the stream; all other members in any.
class OrderedChannel {
 public:
  explicit OrderedChannel(const ChannelContext& context)
      : job_rank_(context.reporting_rank()),
        name_(context.name),
        host_(context.members.host),
        timeout_(std::min<std::chrono::nanoseconds>(context.timeout, std::chrono::hours(24 * 365))),
        failure_(context.failure),
        on_stall_(context.on_stall),
        activity_(context.activity) {}
  OrderedChannel(const OrderedChannel&) = delete;
  OrderedChannel& operator=(const OrderedChannel&) = delete;

  int job_rank() const noexcept { return job_rank_; }
  const std::string& name() const noexcept { return name_; }
  const std::string& host() const noexcept { return host_; }

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

  /// Sets `cause_`, unless it is set, and ends the operation that runs.
  virtual void abort(const Cause& cause) noexcept = 0;

  /// Whether work must stop. Checked between steps of work that take microseconds.
  bool aborted() const noexcept { return cause_.is_set(); }
  std::optional<Cause> failure() const { return cause_.get(); }

  /// @throws the job's first cause, or this channel's
  void throw_if_failed() const {
    failure_->throw_if_failed(job_rank_);
    if (const std::optional<Cause> cause = failure()) {
      throw_cause(*cause);
    }
  }

  /// Aborts, and reports to the job.
  void fail(const Cause& cause) noexcept {
    abort(cause);
    report_quietly(*failure_, cause);
  }

 protected:
  virtual ~OrderedChannel() = default;

  /// Runs `work`, of an operation, as the `turn`-th enqueued operation (the first is 1); skips it if the channel has
  /// failed. Calls `reject`, which must fail the channel, if an earlier operation has not run, or another one is
  /// running.
  template <class Work, class Reject>
  void run_in_order(std::uint64_t turn, const Operation& operation, Work work, Reject reject) noexcept {
    if (in_operation_.exchange(1) != 0) {
      reject();
      return;
    }
    const std::uint64_t done = done_.load(std::memory_order_relaxed);
    if (done + 1 != turn && !aborted()) {
      reject();
    } else if (!cause_.flag().load()) {  // seq_cst, as in close_order(): this thread or that one sees the other's store
      if (activity_) {
        activity_->call(operation);
        activity_->begin(operation);
      }
      work();
      if (activity_ && !aborted()) activity_->end();  // else a status shows what has failed
      if (aborted()) {
        interrupted_.store(true);
      }
    }
    done_.store(std::max(done, turn), std::memory_order_release);
    in_operation_.store(0);
    if (closing_.load()) {
      futex_wake_all(in_operation_, FutexScope::process);
    }
  }

  /// Whether an operation runs now. After abort() none begins.
  bool is_in_operation() const noexcept { return in_operation_.load() != 0; }

  bool has_run(std::uint64_t enqueued) const noexcept { return done_.load() >= enqueued; }

  /// The communicator is being destroyed: no work runs after this. Blocking: until an operation that runs in another
  /// thread has ended, which is soon. @returns whether an operation was interrupted, now or by an earlier failure
  bool close_order(std::uint64_t enqueued) noexcept {
    if (!has_run(enqueued)) {
      abort({CauseKind::exception, job_rank_, host_, "its communicator was destroyed before all of its work had run"});
    }
    closing_.store(true);
    while (in_operation_.load() != 0) {
      futex_wait(in_operation_, 1, Deadline::after(std::chrono::seconds(1)), FutexScope::process);
    }
    return interrupted_.load();
  }

  const int job_rank_;
  const std::string name_;
  const std::string host_;
  const std::chrono::nanoseconds timeout_;
  const std::shared_ptr<FailureLatch> failure_;
  const std::function<void()> on_stall_;
  FirstCause cause_;

 private:
  const std::shared_ptr<ChannelActivity> activity_;
  std::atomic<std::int64_t> references_{1};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint32_t> in_operation_{0};
  std::atomic<bool> interrupted_{false};  ///< an operation that had begun may have left messages undone
  std::atomic<bool> closing_{false};
};

/// Work of a stream. Holds a reference to the channel, and what `algorithm` owns until its release(), until it has run
/// or was dropped.
template <class Channel, class Descriptor, class Algorithm>
struct EnqueuedOperation {
  Channel* channel;
  std::uint64_t turn;
  Descriptor operation;
  Algorithm algorithm;

  void operator()() noexcept {
    channel->run(turn, operation, algorithm);
    drop();
  }
  void drop() noexcept {
    if constexpr (requires { algorithm.release(); }) {
      algorithm.release();
    }
    channel->release();
  }
};

/// Counts and enqueues a channel's operations; has a stable address while its communicator moves.
/// @tparam Channel an OrderedChannel with run(turn, operation, algorithm) and close(enqueued)
template <class Channel>
struct ChannelOwner {
  /// Makes the channel of `arguments`. @throws its exceptions
  template <class... Arguments>
  explicit ChannelOwner(const ChannelContext& of, Arguments&&... arguments)
      : context(of), channel(new Channel(context, std::forward<Arguments>(arguments)...)) {}
  ChannelOwner(const ChannelOwner&) = delete;
  ChannelOwner& operator=(const ChannelOwner&) = delete;
  ~ChannelOwner() { close(); }

  /// Lets a failure of the job abort the channel.
  void subscribe() {
    subscription = context.failure->subscribe([this](const Cause& cause) { channel->abort(cause); });
  }

  /// Closes the channel, for a class that has members of this class and whose members the channel's work uses.
  void close() noexcept {
    if (channel != nullptr) {
      subscription.reset();
      channel->close(enqueued);
      std::exchange(channel, nullptr)->release();
    }
  }

  /// Descriptor of the next collective. enqueue() counts it, after success only.
  Operation next(Operation described) const noexcept {
    described.sequence = collectives + 1;
    return described;
  }

  /// @tparam Descriptor Operation, or what the channel's run() takes in place of it
  /// @throws as the stream's enqueue()
  template <class Descriptor, class Algorithm>
  void enqueue(const Descriptor& operation, const Algorithm& algorithm, stream::host::StreamRef stream) {
    channel->retain();
    try {
      stream.enqueue(EnqueuedOperation<Channel, Descriptor, Algorithm>{channel, enqueued + 1, operation, algorithm});
    } catch (...) {
      channel->release();
      throw;
    }
    ++enqueued;
    if constexpr (std::is_same_v<Descriptor, Operation>) {
      collectives += operation.sequence != 0 ? 1 : 0;
    }
  }

  /// Collective, blocking: see split_context.
  ChannelContext split(int color, int key, Deadline deadline) {
    context.run_other_streams();
    ChannelContext part = split_context(context, splits + 1, color, key, deadline);
    ++splits;
    return part;
  }

  const ChannelContext context;
  Channel* channel;
  std::uint64_t enqueued = 0;     ///< operations of every kind
  std::uint64_t collectives = 0;  ///< operations of all ranks, without point to point
  std::uint64_t splits = 0;
  FailureLatch::Subscription subscription;
};

}  // namespace DTRAIN_NAMESPACE::backend
