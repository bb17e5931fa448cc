#pragma once
/// @file
/// Watchdog of an nccl::Communicator: the thread that detects failed operations, aborts the channel, and alone ends its
/// ncclComm_t.

#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "dtrain/async/thread.hpp"
#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/backend/nccl/inflight_ring.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Precondition: the channel is watched. Blocking. @returns whether its work has run in time; true after an abort
inline bool block_until_idle(Channel& channel, Deadline deadline) {
  const stream::cuda::RelaxedCapture relaxed;
  while (!channel.status.aborted() && !channel.idle()) {
    if (deadline.passed()) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

/// Locks a communicator that launches in the calling thread. If a thread is in a call 5 s after an abort, ends the
/// process: NCCL frees the communicator in ncclCommAbort without waiting for that thread (src/init.cc, commReclaim).
/// Blocking.
inline CommLock::Guard lock_or_end_process(Channel& channel) noexcept {
  constexpr std::chrono::milliseconds pause(10);
  std::chrono::milliseconds waited(0);  // not while the process is stopped
  for (;; waited += pause) {
    CommLock::Guard held = channel.comm_lock.try_lock();
    if (held.is_granted()) {
      return held;
    }
    const std::optional<Cause> cause = channel.status.failure();
    if (cause && waited >= std::chrono::seconds(5)) {
      try {
        log(LogLevel::error,
            format_text("{} (and a call to NCCL on channel '{}' does not return: this process ends here)",
                        {cause->sentence(), channel.context.name}));
      } catch (...) {
        // No memory for the message.
      }
      ::_exit(exit_code_job_failed);
    }
    std::this_thread::sleep_for(pause);
  }
}

/// Ends the communicator, and after an abort all work that still runs. Blocking, without a deadline: NCCL waits for
/// graphs with its operations. ncclCommDestroy and ncclCommAbort also wait until all ranks of the node have called one
/// of the two (src/proxy.cc, ncclProxyService). Only the watchdog thread, which can be abandoned, calls this.
inline void end_blocking(Channel& channel) noexcept {
  CommLock::Guard held =
      channel.launches == Launches::in_caller ? lock_or_end_process(channel) : channel.comm_lock.lock();
  bool finalized = false;
  if (held.communicator() != nullptr && !channel.status.aborted()) {
    channel.deregister_all(held);
    const auto finalize = [&] {
      const ncclResult_t result = wait_for_result_blocking(
          held, ncclCommFinalize(held.communicator()), Deadline::unbounded("the watchdog thread can be left behind"),
          [&] { return channel.status.aborted(); });
      return result == ncclSuccess;
    };
    finalized = channel.launches == Launches::in_caller ||
                finalize();  // ncclCommDestroy does it for the former, without the lock
  }
  const ncclComm_t communicator = channel.comm_lock.take(held);
  held.unlock();
  if (communicator != nullptr) {
    static_cast<void>(finalized ? ncclCommDestroy(communicator) : ncclCommAbort(communicator));
  }
  channel.abort_abandoned_splits();
}

/// Polls NCCL and the events twenty times a second; an abort wakes it at once. Only this thread ends the communicator,
/// so that threads that abort or close do not block in NCCL. The watchdog shares the channel: a thread that hangs in
/// NCCL is abandoned with it.
class Watchdog {
 public:
  /// @throws Error if the system cannot start a thread
  explicit Watchdog(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {
    thread_ = async::start_thread("the thread that watches NCCL", [shared = channel_] { main(*shared); });
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Blocking: until the thread has ended, and the communicator with it; ten seconds at most.
  ~Watchdog() {
    channel_->status.stop_watching();
    if (channel_->status.block_until_ended() || !channel_->status.abandon_thread()) {
      thread_.join();
      return;
    }
    thread_.detach();
    if (channel_->launches == Launches::none) return;  // the group's channel has said so
    try {
      log(LogLevel::warning,
          format_text(
              "NCCL did not end the communicator of channel '{}' within 10 s (1 s after an earlier delay); "
              "its thread is abandoned. NCCL waits until all ranks of a node close theirs: destroy wrappers and "
              "groups in one order on all ranks, and CUDA graphs with their operations before them",
              {channel_->context.name}));
    } catch (...) {
      // No memory for the message.
    }
  }

 private:
  static void main(Channel& channel) noexcept {
    // Only the channel's device gets a context. Captures of other threads do not forbid this thread's calls.
    stream::cuda::quiet(cudaSetDevice(channel.device()));
    const stream::cuda::RelaxedCapture relaxed;
    async::JoiningThread polling;
    try {
      polling = async::start_thread("the thread that polls CUDA's events", [&channel] { poll_events(channel); });
      bool timeout_published = false;
      while (channel.status.block_while_watching(Deadline::after(std::chrono::milliseconds(50)))) {
        poll(channel, timeout_published);
      }
    } catch (...) {
      channel.status.fail(CauseKind::exception, "the thread that watches NCCL has failed");
    }
    if (!channel.status.aborted() && channel.launches != Launches::none) {
      publish_departure(channel.context, true);  // again: an operation that timed out has overwritten the entry
    }
    end_blocking(channel);
    polling.join();  // a CUDA call that may block it returns now
    channel.status.set_ended();
  }

  /// Polls the events in a separate thread: a CUDA call may block until NCCL is aborted, which main() does.
  static void poll_events(Channel& channel) noexcept {
    stream::cuda::quiet(cudaSetDevice(channel.device()));
    const stream::cuda::RelaxedCapture relaxed;
    do {
      channel.poll_events();
    } while (channel.status.block_while_watching(Deadline::after(std::chrono::milliseconds(50))));
  }

  /// @param timeout_published whether the store holds the operation that this rank timed out in
  static void poll(Channel& channel, bool& timeout_published) {
    const Channel::PollResult polled = channel.poll();
    const auto doing = [&] { return format_text("an operation on channel '{}' that ran", {channel.context.name}); };
    if (polled.state != ncclSuccess && polled.state != ncclInProgress) {
      channel.status.wait_for_first_cause();  // another rank may have failed
      if (!channel.status.aborted()) {
        channel.status.fail(CauseKind::exception,
                            nccl_error(polled.state, doing(), channel.caller(), polled.error_text).what());
      }
    } else if (polled.device != cudaSuccess) {
      channel.status.fail(CauseKind::exception, stream::cuda::cuda_error(polled.device, doing()).what());
    } else if (polled.overdue) {
      timeout_published = true;
      const std::optional<Cause> cause = diagnose_timeout_blocking(channel.context, *polled.overdue);
      if (cause && channel.poll().overdue) {  // otherwise the operation has ended meanwhile, or the next poll decides
        channel.status.fail(*cause);
      }
    } else if (polled.is_late || polled.is_stuck) {
      fail_without_cuda(channel, polled, timeout_published);
    } else if (timeout_published && polled.was_polled) {
      retract_timeout(channel.context);
      timeout_published = false;
    }
  }

  /// Fails the channel, whose calls to NCCL or CUDA do not return, by its oldest operation, which needs no such call.
  static void fail_without_cuda(Channel& channel, const Channel::PollResult& polled, bool& timeout_published) {
    if (const std::optional<Operation> oldest = channel.oldest_operation()) {
      timeout_published = true;
      const std::optional<Cause> cause = diagnose_timeout_blocking(channel.context, *oldest);
      const Channel::PollResult again = channel.poll();
      if (cause && (again.is_late || again.is_stuck)) channel.status.fail(*cause);
    } else if (polled.is_late) {
      channel.status.fail(
          CauseKind::timeout,
          format_text("a call to NCCL on channel '{}' has not returned in time; does every rank make it?",
                      {channel.context.name}));
    } else {
      channel.status.fail(
          CauseKind::timeout,
          format_text("CUDA has not answered for longer than the timeout of {} whether the operations on channel '{}' "
                      "have run; a stream may be full of work behind one that waits for another rank, or the device's "
                      "driver hangs",
                      {duration_text(channel.context.timeout), channel.context.name}));
    }
  }

  const std::shared_ptr<Channel> channel_;
  async::JoiningThread thread_;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
