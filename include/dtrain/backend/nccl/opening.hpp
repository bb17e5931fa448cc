#pragma once
/// @file
/// Opening of an NCCL channel by ncclCommInitRankConfig or ncclCommSplit, with a deadline. RootChannel of a group: its
/// channels are split from it.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/backend/nccl/watchdog.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// @throws Error (protocol) unless `bytes` are those of an ncclUniqueId
inline ncclUniqueId unique_id_from(const std::string& bytes) {
  ncclUniqueId id{};
  if (bytes.size() != sizeof id.internal) {
    throw_error(Errc::protocol, "NCCL's unique id came as {} bytes; do all ranks run the same program?",
                {bytes.size()});
  }
  bytes.copy(id.internal, sizeof id.internal);
  return id;
}

/// Rank 0's unique id, which the store passes on. Blocking. @throws Error (timeout, nccl), JobFailed
inline ncclUniqueId exchange_id_blocking(const Channel& channel, Deadline deadline) {
  const auto draw = [&] {
    ncclUniqueId id{};
    const ncclResult_t code = ncclGetUniqueId(&id);
    if (code != ncclSuccess) {
      throw nccl_error(code, "ncclGetUniqueId", channel.caller(), last_error(nullptr),
                       "NCCL_SOCKET_IFNAME names the network interface to use");
    }
    return std::string(id.internal, sizeof id.internal);
  };
  const ChannelContext& context = channel.context;
  const StoreRank self = StoreRank::of(context, deadline, format_text("opening channel '{}'", {context.name}));
  return unique_id_from(store_broadcast(self, context.name + "/nccl-id", draw));
}

/// Remedy for an error of ranks that do not connect.
inline std::string hint(const Channel& channel) {
  const int ranks = channel.context.members.world_size;
  return ranks == 1 ? "is the device of another process at fault? NCCL_DEBUG=INFO makes NCCL say what it waits for"
                    : format_text(
                          "do all {} ranks open this channel, each with a device of its own? NCCL_SOCKET_IFNAME names "
                          "the interface that the ranks reach each other by, whose ports no firewall may "
                          "close; NCCL_DEBUG=INFO makes NCCL say what it waits for",
                          {ranks});
}

/// Waits for the communicator under the channel's lock. After a failure the channel keeps it: an abort may wait for
/// other ranks, which must be notified first. @throws the job's first cause; Error (timeout, nccl)
inline void wait_or_throw(Channel& channel, CommLock::Guard& held, ncclResult_t code, const char* call,
                          Deadline deadline) {
  const auto began = Deadline::Clock::now();
  const auto& job = channel.context.failure;
  const ncclResult_t result = wait_for_result_blocking(held, code, deadline, [&] { return job->failed(); });
  if (result == ncclSuccess && held.communicator() != nullptr) {
    return;
  }
  const std::string error_text = held.communicator() != nullptr ? last_error(held.communicator()) : last_error(nullptr);
  held.unlock();
  job->throw_if_failed(channel.context.reporting_rank());
  const std::string doing = format_text("{} for channel '{}'", {call, channel.context.name});
  if (result == ncclInProgress) {
    const rendezvous::Membership& members = channel.context.members;
    throw Error(Errc::timeout, format_text("{} had not connected rank {} of {} after {}; {}",
                                           {doing, members.rank, members.world_size,
                                            duration_text(Deadline::Clock::now() - began), hint(channel)}))
        .with_rank(channel.context.reporting_rank());
  }
  throw nccl_error(result, doing, channel.caller(), error_text, hint(channel));
}

/// Collective, blocking: makes the channel's communicator.
/// @throws the job's first cause; Error (timeout, nccl, protocol), which the caller reports to the job
inline void connect_blocking(Channel& channel, Deadline deadline) {
  const ChannelContext& context = channel.context;
  const ncclUniqueId id = exchange_id_blocking(channel, deadline);
  const stream::cuda::DeviceGuard guard(channel.device());
  ncclConfig_t config = config_of(channel.options, channel.launches, channel.context.name.c_str());
  ncclComm_t made = nullptr;
  CommLock::Guard held = channel.comm_lock.lock();
  const Channel::TimedCall timed(channel, deadline);
  const ncclResult_t code =
      ncclCommInitRankConfig(&made, context.members.world_size, id, context.members.rank, &config);
  channel.comm_lock.adopt(held, made);
  wait_or_throw(channel, held, code, "ncclCommInitRankConfig", deadline);
}

/// Collective, blocking: gives `child` a communicator of the ranks of `from` with the same color.
/// @throws the job's first cause; Error (timeout, nccl), which the caller reports to the job
inline void split_blocking(const std::shared_ptr<Channel>& from, Channel& child, int color, int key,
                           Deadline deadline) {
  Channel& parent = *from;
  child.parent = from;
  Channel::SplitResult& result = parent.split_result(child.context.name);
  ncclComm_t& made = result.made;
  ncclConfig_t config = config_of(child.options, child.launches, result.name.c_str());
  parent.manage(format_text("opening channel '{}' by ncclCommSplit", {result.name}), deadline,
                [&](ncclComm_t communicator) { return ncclCommSplit(communicator, color, key, &made, &config); });
  const std::atomic_ref<ncclComm_t> written(made);
  while (written.load(std::memory_order_acquire) == nullptr && !deadline.passed() && !parent.status.aborted()) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(100));  // NVIDIA/nccl#1472: written after the parent's state changes
  }
  if (written.load(std::memory_order_acquire) == nullptr) {
    parent.status.check();
    throw Error(Errc::timeout,
                format_text("ncclCommSplit for channel '{}' had not given a communicator by the deadline; {}",
                            {child.context.name, hint(child)}))
        .with_rank(child.context.reporting_rank());
  }
  CommLock::Guard held = child.comm_lock.lock();
  child.comm_lock.adopt(held, written.exchange(nullptr, std::memory_order_acquire));
  wait_or_throw(child, held, ncclSuccess, "ncclCommSplit", deadline);
}

/// A communicator that a group keeps for splits, and that never communicates. Its calls are non-blocking, so that
/// opening a channel has a deadline, whereas a split of a communicator that launches in the calling thread would wait
/// there. Destruction, blocking: as Communicator's.
class RootChannel {
 public:
  /// Has no communicator yet. @param of the group's channel, which is split from it
  RootChannel(const ChannelContext& of, const NcclOptions& options, int device)
      : channel_(std::make_shared<Channel>(of, options, device, Launches::none)),
        subscription_(of.failure->subscribe([to = channel_](const Cause& cause) { to->status.abort(cause); })) {}
  RootChannel(const RootChannel&) = delete;
  RootChannel& operator=(const RootChannel&) = delete;

  ~RootChannel() {
    try {
      if (channel_->comm_lock.lock().communicator() != nullptr) {
        const stream::cuda::DeviceGuard guard(channel_->device());
        const Watchdog ends_it(channel_);
      }
    } catch (...) {
      // The runtime is unloading; the communicator ends with the process.
    }
  }

  const std::shared_ptr<Channel>& channel() const noexcept { return channel_; }

 private:
  const std::shared_ptr<Channel> channel_;
  const FailureLatch::Subscription subscription_;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
