#pragma once
/// @file
/// Making communicators: of all ranks of a channel, and of a part of them.

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/backend/nccl/error.hpp"
#include "dtrain/backend/nccl/settling.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/seconds_text.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

inline std::string to_hexadecimal(const ncclUniqueId& id) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const char character : id.internal) {
    const auto byte = static_cast<unsigned char>(character);
    text += {digits[byte >> 4], digits[byte & 0xf]};
  }
  return text;
}

/// @throws Error (protocol) for what to_hexadecimal does not give
inline ncclUniqueId unique_id_from(const std::string& text) {
  ncclUniqueId id{};
  bool good = text.size() == 2 * sizeof id.internal;
  for (std::size_t i = 0; good && i < sizeof id.internal; ++i) {
    unsigned byte = 0;
    const char* const end = text.data() + 2 * i + 2;
    const auto [after, error] = std::from_chars(end - 2, end, byte, 16);
    good = after == end && error == std::errc();
    id.internal[i] = static_cast<char>(byte);
  }
  if (!good) {
    throw Error(Errc::protocol, "NCCL's unique id came as " + std::to_string(text.size()) +
                                    " characters that are none; do all ranks run the same program?");
  }
  return id;
}

/// Rank 0's, through the store. Blocking. @throws Error (timeout, nccl), JobFailed
inline ncclUniqueId agreed_id_blocking(const Channel& channel, Deadline deadline) {
  const ChannelContext& context = channel.context;
  const std::string key = context.name + "/nccl-id";
  if (context.members.rank != 0) {
    return unique_id_from(context.store.take_blocking(key, context.members.world_size - 1, deadline));
  }
  ncclUniqueId id{};
  const ncclResult_t code = ncclGetUniqueId(&id);
  if (code != ncclSuccess) {
    throw nccl_error(code, "ncclGetUniqueId", channel.caller(), last_words(nullptr),
                     "NCCL_SOCKET_IFNAME names the network interface to use");
  }
  if (context.members.world_size > 1) {
    context.store.set_blocking(key, to_hexadecimal(id), deadline);
  }
  return id;
}

/// What to do about ranks that do not find each other.
inline std::string advice(const Channel& channel) {
  const int ranks = channel.context.members.world_size;
  return ranks == 1 ? "is the device of another process at fault? NCCL_DEBUG=INFO makes NCCL say what it waits for"
                    : "do all " + std::to_string(ranks) +
                          " ranks come here, each with a device of its own? NCCL_SOCKET_IFNAME names the interface "
                          "that the ranks reach each other by, whose ports no firewall may close; NCCL_DEBUG=INFO "
                          "makes NCCL say what it waits for";
}

/// Waits for the communicator at the channel's gate. Where that is in vain it stays there: an abort may wait for other
/// ranks, who are to be told first.
/// @throws the job's first cause; Error (timeout, nccl)
inline void settle_or_throw(Channel& channel, Gate::Turn& turn, ncclResult_t code, const char* call,
                            Deadline deadline) {
  const auto began = Deadline::Clock::now();
  const auto& job = channel.context.failure;
  const Settled settled = settle_blocking(turn, code, deadline, [&] { return job->failed(); });
  if (settled.code == ncclSuccess && turn.communicator() != nullptr) {
    return;
  }
  const std::string words = turn.communicator() != nullptr ? last_words(turn.communicator()) : last_words(nullptr);
  turn.leave();
  job->throw_if_failed(channel.context.reporting_rank());
  const std::string doing = std::string(call) + " for channel '" + channel.context.name + "'";
  if (settled.code == ncclInProgress) {
    throw Error(Errc::timeout, doing + " had not connected rank " + std::to_string(channel.context.members.rank) +
                                   " of " + std::to_string(channel.context.members.world_size) + " after " +
                                   seconds_text(Deadline::Clock::now() - began) + "; " + advice(channel))
        .with_rank(channel.context.reporting_rank());
  }
  throw nccl_error(settled.code, doing, channel.caller(), words, advice(channel));
}

/// Collective, blocking: gives the channel its communicator. @throws the job's first cause; Error (timeout, nccl,
/// protocol), once the job is told
inline void connect_blocking(Channel& channel, Deadline deadline) {
  const ChannelContext& context = channel.context;
  const ncclUniqueId id = agreed_id_blocking(channel, deadline);
  const stream::cuda::DeviceGuard guard(channel.device());
  ncclConfig_t config = config_of(channel.options);
  ncclComm_t made = nullptr;
  Gate::Turn turn = channel.gate.enter();
  const ncclResult_t code =
      ncclCommInitRankConfig(&made, context.members.world_size, id, context.members.rank, &config);
  channel.gate.adopt(turn, made);
  settle_or_throw(channel, turn, code, "ncclCommInitRankConfig", deadline);
}

/// Collective, blocking: gives `part` a communicator of those ranks of `whole` that give the same color.
/// @throws the job's first cause; Error (timeout, nccl), once the job is told
inline void split_blocking(Channel& whole, Channel& part, int color, int key, Deadline deadline) {
  ncclConfig_t config = config_of(part.options);
  ncclComm_t& made = whole.room_for_split();
  whole.manage("splitting", deadline,
               [&](ncclComm_t communicator) { return ncclCommSplit(communicator, color, key, &made, &config); });
  const std::atomic_ref<ncclComm_t> written(made);
  while (written.load(std::memory_order_acquire) == nullptr && !deadline.passed() && !whole.fate.aborted()) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(100));  // NVIDIA/nccl#1472: a moment behind the parent's state
  }
  if (written.load(std::memory_order_acquire) == nullptr) {
    whole.fate.check();
    throw Error(Errc::timeout, "ncclCommSplit for channel '" + part.context.name +
                                   "' had not given a communicator by the deadline; " + advice(part))
        .with_rank(part.context.reporting_rank());
  }
  Gate::Turn turn = part.gate.enter();
  part.gate.adopt(turn, written.exchange(nullptr, std::memory_order_acquire));
  settle_or_throw(part, turn, ncclSuccess, "ncclCommSplit", deadline);
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
