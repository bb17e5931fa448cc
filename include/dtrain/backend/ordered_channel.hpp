#pragma once
/// @file
/// OrderedChannel: base of a channel that runs its operations in enqueue order, until its first cause of failure.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/failure/first_cause.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Reference-counted (retain, release) by the communicator and by each enqueued operation, which may outlive it.
/// `Derived` has abort(const Cause&) noexcept, which sets `cause_` and ends the operation that runs.
/// Threads: run_in_order in the thread that runs the stream; all other members in any.
template <class Derived>
class OrderedChannel {
 public:
  explicit OrderedChannel(const ChannelContext& context)
      : job_rank_(context.reporting_rank()),
        name_(context.name),
        host_(context.members.host),
        timeout_(std::min<std::chrono::nanoseconds>(context.timeout, std::chrono::hours(24 * 365))),
        failure_(context.failure),
        on_stall_(context.on_stall) {}
  OrderedChannel(const OrderedChannel&) = delete;
  OrderedChannel& operator=(const OrderedChannel&) = delete;

  int job_rank() const noexcept { return job_rank_; }
  const std::string& name() const noexcept { return name_; }
  const std::string& host() const noexcept { return host_; }

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete static_cast<Derived*>(this);
    }
  }

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
    static_cast<Derived&>(*this).abort(cause);
    report_quietly(*failure_, cause);
  }

 protected:
  ~OrderedChannel() = default;

  /// Runs `work` as the `turn`-th enqueued operation (the first is 1); skips it if the channel has failed. Calls
  /// `reject`, which must fail the channel, if an earlier operation has not run, or another one is running.
  template <class Work, class Reject>
  void run_in_order(std::uint64_t turn, Work work, Reject reject) noexcept {
    if (in_operation_.exchange(1) != 0) {
      reject();
      return;
    }
    const std::uint64_t done = done_.load(std::memory_order_relaxed);
    if (done + 1 != turn && !aborted()) {
      reject();
    } else if (!cause_.flag().load()) {  // seq_cst, as in close_order(): this thread or that one sees the other's store
      work();
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
      static_cast<Derived&>(*this).abort(
          {CauseKind::exception, job_rank_, host_, "its communicator was destroyed before all of its work had run"});
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
  std::atomic<std::int64_t> references_{1};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint32_t> in_operation_{0};
  std::atomic<bool> interrupted_{false};  ///< an operation that had begun may have left messages undone
  std::atomic<bool> closing_{false};
};

}  // namespace DTRAIN_NAMESPACE::backend
