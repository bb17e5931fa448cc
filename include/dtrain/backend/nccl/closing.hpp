#pragma once
/// @file
/// The end of a channel: work that is complete is left in peace, all else is aborted.

#include <chrono>
#include <thread>

#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/backend/nccl/settling.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/log.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// While the channel is watched. Blocking: until its work has run or failed, its timeout at most.
inline void block_until_idle(Channel& channel) {
  const Deadline deadline = Deadline::after(channel.context.timeout);
  while (!channel.fate.aborted() && !channel.idle()) {
    if (deadline.passed()) {
      channel.fate.fail(CauseKind::exception,
                        "its communicator '" + channel.context.name + "' was destroyed before all of its work had run");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

/// Once it is to be watched no longer. Blocking: ten seconds at most. A communicator that does not end by then stays:
/// an abort would wait for the same graph, and in it for ever.
inline void finalize_blocking(Channel& channel) {
  if (!channel.fate.block_until_ended(Deadline::after({}))) {
    return;  // the watching thread hangs in an abort, and with it the gate
  }
  Gate::Turn turn = channel.gate.enter();
  if (turn.communicator() == nullptr) {
    return;
  }
  channel.strike_all(turn);
  const Settled settled =
      settle_blocking(turn, ncclCommFinalize(turn.communicator()), Deadline::after(std::chrono::seconds(10)),
                      [&] { return channel.fate.aborted(); });
  if (settled.code == ncclSuccess && turn.communicator() != nullptr) {
    channel.gate.destroy(turn);
  } else if (settled.given_up || settled.code != ncclInProgress) {
    channel.gate.abort(turn);
  } else {
    channel.gate.adopt(turn, nullptr);
    log(LogLevel::warning, "NCCL's communicator of channel '" + channel.context.name +
                               "' had not ended after 10 s and is left to the end of the process; destroy CUDA graphs "
                               "with its operations before it");
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
