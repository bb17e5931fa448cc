#pragma once
/// @file
/// End of a channel: ncclCommFinalize and ncclCommDestroy if its work is complete, ncclCommAbort otherwise.

#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "dtrain/backend/nccl/async_result.hpp"
#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/relaxed_capture.hpp"

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

/// Locks a blocking communicator. If a thread is in a call 5 s after an abort, ends the process: NCCL frees the
/// communicator in ncclCommAbort without waiting for that thread (src/init.cc, commReclaim). Blocking.
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
/// graphs with its operations, and in ncclCommDestroy and ncclCommAbort until all ranks of the node have called one of
/// the two (src/proxy.cc, ncclProxyService). Only the watchdog thread, which can be left behind, calls this.
inline void end_blocking(Channel& channel) noexcept {
  CommLock::Guard held = channel.options.blocking ? lock_or_end_process(channel) : channel.comm_lock.lock();
  bool finalized = false;
  if (held.communicator() != nullptr && !channel.status.aborted()) {
    channel.deregister_all(held);
    const auto finalize = [&] {
      const AsyncResult result = wait_for_result_blocking(held, ncclCommFinalize(held.communicator()),
                                                          Deadline::unbounded("the watchdog thread can be left behind"),
                                                          [&] { return channel.status.aborted(); });
      return result.code == ncclSuccess;
    };
    finalized = channel.options.blocking || finalize();  // ncclCommDestroy does it for the former, without the lock
  }
  const ncclComm_t communicator = channel.comm_lock.take(held);
  held.unlock();
  if (communicator != nullptr) {
    static_cast<void>(finalized ? ncclCommDestroy(communicator) : ncclCommAbort(communicator));
  }
  channel.abort_abandoned_splits();
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
