#pragma once
/// @file
/// The end of a channel: finalize and destroy where its work is complete, abort otherwise.

#include <chrono>
#include <thread>

#include "dtrain/backend/nccl/async_result.hpp"
#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/stream/cuda/relaxed_capture.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// While the channel is watched. Blocking. @returns whether its work has run by the deadline; true where it was aborted
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

/// Ends the communicator; all work that still runs where the channel was aborted. Blocking, and without a deadline:
/// NCCL waits for graphs with its operations, and in ncclCommDestroy and ncclCommAbort until all ranks of the node have
/// called one of the two (src/proxy.cc, ncclProxyService). Hence nobody does this but the thread that watches, which
/// can be left behind.
inline void end_blocking(Channel& channel) noexcept {
  CommLock::Guard held = channel.comm_lock.lock();
  bool finalized = false;
  if (held.communicator() != nullptr && !channel.status.aborted()) {
    channel.deregister_all(held);
    const AsyncResult result =
        wait_for_result_blocking(held, ncclCommFinalize(held.communicator()), Deadline::after(std::chrono::hours(24)),
                                 [&] { return channel.status.aborted(); });
    finalized = result.code == ncclSuccess;
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
