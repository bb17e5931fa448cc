#pragma once
/// @file
/// Communicator of device memory over NCCL, which Nccl opens; Allocation: zeroed memory, registered with NCCL.
/// Initialisation of NCCL communicators: ncclCommInitRankConfig for all ranks of a channel, and ncclCommSplit.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/nccl/calls.hpp"
#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/backend/nccl/watchdog.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

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
  ncclConfig_t config = config_of(channel.options, channel.context.name.c_str());
  ncclComm_t made = nullptr;
  CommLock::Guard held = channel.comm_lock.lock();
  const Channel::TimedCall timed(channel, deadline);
  const ncclResult_t code =
      ncclCommInitRankConfig(&made, context.members.world_size, id, context.members.rank, &config);
  channel.comm_lock.adopt(held, made);
  wait_or_throw(channel, held, code, "ncclCommInitRankConfig", deadline);
}

/// Collective, blocking: gives `child` a communicator of the ranks of `parent` with the same color.
/// @throws the job's first cause; Error (timeout, nccl), which the caller reports to the job
inline void split_blocking(Channel& parent, Channel& child, int color, int key, Deadline deadline) {
  Channel::SplitResult& result = parent.split_result(child.context.name);
  ncclComm_t& made = result.made;
  ncclConfig_t config = config_of(child.options, result.name.c_str());
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

/// Blocking. @throws as stream::cuda::zero_blocking
inline void zero_blocking(void* data, std::size_t bytes, int device, Deadline deadline) {
  const stream::cuda::Stream stream(stream::cuda::Priority::normal, device);
  stream::cuda::zero_blocking(data, bytes, stream.ref(), deadline);
}

/// Owns `bytes()` bytes on the channel's device. Movable; may outlive the communicator. Destruction waits for the
/// device, as that of other device memory does.
class Allocation {
 public:
  Allocation() noexcept = default;

  /// Collective, blocking. @throws Error (out_of_memory, timeout, nccl, cuda); the job's first cause
  Allocation(std::shared_ptr<Channel> channel, std::size_t bytes, Deadline deadline)
      : memory_(new RegisteredMemory{std::move(channel), bytes}) {
    RegisteredMemory& memory = *memory_;
    memory.channel->status.check();
    const stream::cuda::DeviceGuard guard(memory.channel->device());
    const std::size_t length = std::max<std::size_t>(bytes, 1);
    const ncclResult_t code = allocate(&memory.data, length);
    if (code != ncclSuccess) {
      memory.data = nullptr;
      stream::cuda::quiet(cudaGetLastError());
      throw Error(Errc::out_of_memory,
                  format_text("no {} bytes of memory of device {} could be had: ncclMemAlloc says {}, {}",
                              {bytes, memory.channel->device(), name_of(code),
                               nccl_category().message(static_cast<int>(code))}))
          .with_rank(memory.channel->context.reporting_rank());
    }
    zero_blocking(memory.data, length, memory.channel->device(), deadline);
    memory.handle = memory.channel->register_memory(data(), length, deadline);
    memory.registered = true;
  }

  std::byte* data() const noexcept { return memory_ ? static_cast<std::byte*>(memory_->data) : nullptr; }
  std::size_t bytes() const noexcept { return memory_ ? memory_->bytes : 0; }

 private:
  struct RegisteredMemory {
    RegisteredMemory(std::shared_ptr<Channel> of, std::size_t count) : channel(std::move(of)), bytes(count) {}
    RegisteredMemory(const RegisteredMemory&) = delete;
    RegisteredMemory& operator=(const RegisteredMemory&) = delete;
    ~RegisteredMemory() {
      if (data == nullptr) {
        return;
      }
      try {
        const stream::cuda::DeviceGuard guard(channel->device());
        if (channel->status.aborted()) {
          channel->status.block_until_ended();  // the streams drain with it
        }
        // As cudaFree does: streams may still use the memory, which NCCL unmaps at once.
        static_cast<void>(stream::cuda::quiet(cudaDeviceSynchronize()));
        if (registered) {
          channel->deregister_memory(handle);
        }
        static_cast<void>(release(data));
      } catch (...) {
        // A device that cannot be made the current one has no memory any more.
      }
    }

    const std::shared_ptr<Channel> channel;
    const std::size_t bytes;
    void* data = nullptr;
    Channel::RegistrationHandle handle{};
    bool registered = false;
  };

  ProcessOwned<RegisteredMemory> memory_;
};

/// Owns one rank's end of a channel. Buffers and streams are on the device that was the thread's current one at
/// open_blocking(). Operations run on the stream; the host waits only until NCCL has launched them. After a failure of
/// the channel operations throw its cause. Operations can be captured in CUDA graphs, alike on all ranks. A graph's run
/// time is not watched, and the graph is destroyed before the communicator. Threads: one at a time, abort() and
/// failure() from any. Destruction, blocking: until the enqueued work has run or failed, then until all ranks of the
/// node close their ends, at most ten seconds. After ten seconds it logs a warning and leaves NCCL behind in a thread.
class Communicator {
 public:
  using Stream = stream::cuda::StreamRef;
  using Allocation = nccl::Allocation;

  /// ncclAvg multiplies by a factor that is rounded to the element type, and excludes NVLink SHARP (NCCL's
  /// ncclNvlsSupported) and, before 2.30.3, kernels for symmetric memory.
  static constexpr bool prefers_sums = true;

  /// NCCL chooses an algorithm by the operation and its size; from 2.22 on, it connects ranks when an algorithm is
  /// first used.
  static constexpr bool connects_at_first_use = true;

  /// Collective, blocking. @throws the job's first cause; Error (unsupported, timeout, protocol, nccl, cuda)
  static Communicator open_blocking(const ChannelContext& context, const NcclOptions& options, Deadline deadline) {
    require_library();
    auto state = make_process_owned<ChannelState>(context, options, stream::cuda::current_device(), deadline);
    if (options.blocking) {
      state->serve();  // the watchdog ends a process that stays in the call
    }
    reporting_failure(context, [&] { connect_blocking(*state->channel, deadline); });
    if (!options.blocking) {
      state->serve();
    }
    return Communicator(std::move(state));
  }

  int rank() const noexcept { return state_->channel->context.members.rank; }
  int size() const noexcept { return state_->channel->context.members.world_size; }
  const rendezvous::Membership& members() const noexcept { return state_->channel->context.members; }

  /// Operations, which throw Error (unsupported, invalid_argument) at the call.
  /// - exchange_blocks: NCCL compares no counts; if those of two ranks differ, the operation times out.
  /// - A send of any size may wait for its receiver.
  /// @{
  void enqueue(const AllReduce& call, Stream stream) {
    call.check(place());
    const ncclRedOp_t reduction = reduction_of(call.op, call.input.dtype, size());
    collective(call.describe(), call.devices(), "ncclAllReduce", stream, [&](ncclComm_t by) {
      return ncclAllReduce(call.input.data, call.output.data, call.input.count, type_of(call.input.dtype), reduction,
                           by, stream.native());
    });
  }
  void enqueue(const Broadcast& call, Stream stream) {
    call.check(place());
    const BufferView& buffer = call.buffer;
    collective(call.describe(), call.devices(), "ncclBroadcast", stream, [&](ncclComm_t by) {
      return ncclBroadcast(buffer.data, buffer.data, buffer.count, type_of(buffer.dtype), call.root, by,
                           stream.native());
    });
  }
  void enqueue(const Barrier& call, Stream stream) {
    const Device own{DeviceKind::cuda, state_->channel->device()};
    std::byte* const token = state_->token.data();
    collective(call.describe(), {own, own}, "ncclAllReduce", stream,
               [&](ncclComm_t by) { return ncclAllReduce(token, token, 1, ncclInt32, ncclSum, by, stream.native()); });
  }
  void enqueue(const ReduceScatter& call, Stream stream) {
    call.check(place());
    const ncclRedOp_t reduction = reduction_of(call.op, call.input.dtype, size());
    collective(call.describe(), call.devices(), "ncclReduceScatter", stream, [&](ncclComm_t by) {
      return ncclReduceScatter(call.input.data, call.output.data, call.output.count, type_of(call.input.dtype),
                               reduction, by, stream.native());
    });
  }
  void enqueue(const AllGather& call, Stream stream) {
    call.check(place());
    collective(call.describe(), call.devices(), "ncclAllGather", stream, [&](ncclComm_t by) {
      return ncclAllGather(call.input.data, call.output.data, call.input.count, type_of(call.input.dtype), by,
                           stream.native());
    });
  }
  void enqueue(const ExchangeBlocks& call, Stream stream) {
    call.check(place());
    collective(call.describe(), call.devices(), "ncclSend and ncclRecv", stream, [&](ncclComm_t by) {
      return issue_calls(call, {by, rank(), stream});
    });
  }
  void enqueue(const ReduceBlocks& call, Stream stream) {
    call.check(place());
    const ncclRedOp_t reduction = reduction_of(call.op, call.input.dtype, size());
    collective(call.describe(), call.devices(), "ncclReduce", stream, [&](ncclComm_t by) {
      return reduce_blocks(call, reduction, {by, rank(), stream});
    });
  }
  void enqueue(const Send& call, Stream stream) { message(call, "ncclSend", stream); }
  void enqueue(const Recv& call, Stream stream) { message(call, "ncclRecv", stream); }
  void enqueue(const SendRecv& call, Stream stream) { message(call, "ncclSend and ncclRecv", stream); }
  /// @}

  /// See CanSplit. @throws Error (invalid_argument) at the call for a negative color; as open_blocking
  Communicator split_blocking(int color, int key, Deadline deadline) {
    const Channel& parent = *state_->channel;
    parent.status.check();
    const ChannelContext child = split_context(parent.context, state_->splits + 1, color, key, deadline);
    ++state_->splits;
    return open_part_blocking(child, color, key, deadline);
  }

  /// See CanDuplicate. @throws as split_blocking
  Communicator duplicate_blocking(const ChannelContext& context, Deadline deadline) {
    state_->channel->status.check();
    return open_part_blocking(context, 0, rank(), deadline);
  }

  /// See CanAllocate. If a rank cannot allocate, the job fails: the other ranks would wait for it.
  /// @throws Error (out_of_memory, timeout, nccl, cuda); the job's first cause, or the channel's
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    return reporting_failure(state_->channel->context, [&] { return Allocation(state_->channel, bytes, deadline); });
  }

  /// See CanAbort. Does not block: the watchdog thread aborts NCCL. The job aborts the other ranks' channels.
  void abort(const Cause& cause) noexcept { state_->channel->status.abort(cause); }
  std::optional<Cause> failure() const { return state_->channel->status.failure(); }

  /// A number that grows while operations complete. Threads: any.
  std::uint64_t progress() const noexcept { return state_->channel->progress(); }

 private:
  /// State whose address stays the same when the communicator moves.
  struct ChannelState {
    ChannelState(const ChannelContext& context, const NcclOptions& options, int device, Deadline deadline)
        : channel(std::make_shared<Channel>(context, options, device)), token(sizeof(std::int32_t), device) {
      zero_blocking(token.data(), token.bytes(), device, deadline);
    }
    ChannelState(const ChannelState&) = delete;
    ChannelState& operator=(const ChannelState&) = delete;

    /// Precondition: the channel has its communicator.
    void serve() {
      watchdog.emplace(channel);
      subscription =
          channel->context.failure->subscribe([to = channel](const Cause& cause) { to->status.abort(cause); });
    }

    ~ChannelState() {
      try {
        const stream::cuda::DeviceGuard guard(channel->device());
        if (watchdog) {
          publish_departure(channel->context, false);
          if (!block_until_idle(*channel, Deadline::after(channel->context.timeout))) {
            channel->status.fail(CauseKind::exception,
                                 format_text("its communicator '{}' was destroyed before all of its work had run",
                                             {channel->context.name}));
          }
        } else if (channel->comm_lock.lock().communicator() != nullptr) {
          channel->status.abort({CauseKind::exception, channel->context.reporting_rank(), channel->context.members.host,
                                 format_text("channel '{}' could not be opened", {channel->context.name})});
          watchdog.emplace(channel);
        }
        watchdog.reset();
      } catch (...) {
        // The runtime is unloading; the communicator ends with the process.
      }
      subscription.reset();
    }

    const std::shared_ptr<Channel> channel;
    const stream::cuda::DeviceBuffer token;  ///< operand of a barrier
    std::uint64_t collectives = 0;           ///< operations in which every rank takes part
    std::uint64_t splits = 0;
    std::optional<Watchdog> watchdog;
    FailureLatch::Subscription subscription;
  };

  explicit Communicator(ProcessOwned<ChannelState> state) noexcept : state_(std::move(state)) {}

  /// Collective, blocking: the channel `child` of the ranks that pass the same color.
  Communicator open_part_blocking(const ChannelContext& child, int color, int key, Deadline deadline) {
    Channel& parent = *state_->channel;
    auto state = reporting_failure(
        child, [&] { return make_process_owned<ChannelState>(child, parent.options, parent.device(), deadline); });
    reporting_failure(child, [&] {
      if (!block_until_idle(parent, deadline)) {  // else NCCL might deadlock
        throw Error(Errc::timeout,
                    format_text("opening channel '{}' from channel '{}': the work enqueued on that one had not run in "
                                "time; does every rank enqueue it?",
                                {child.name, parent.context.name}))
            .with_rank(child.reporting_rank());
      }
      nccl::split_blocking(parent, *state->channel, color, key, deadline);
    });
    state->serve();
    return Communicator(std::move(state));
  }

  RankPlace place() const noexcept { return {rank(), size()}; }

  /// Issues the next collective, and counts it once it is enqueued.
  template <class Call>
  void collective(Operation operation, const Devices& devices, const char* function, Stream stream, Call call) {
    operation.sequence = state_->collectives + 1;
    issue(operation, devices, function, stream, call);
    ++state_->collectives;
  }

  template <class Message>
  void message(const Message& call, const char* function, Stream stream) {
    call.check(place());
    issue(call.describe(), call.devices(), function, stream, [&](ncclComm_t by) {
      return issue_calls(call, {by, rank(), stream});
    });
  }

  template <class Call>
  void issue(const Operation& operation, const Devices& devices, const char* function, Stream stream, Call call) {
    check_devices(state_->channel->context.name, state_->channel->device(), devices, stream.device());
    state_->channel->issue(operation, function, stream, call);
  }

  ProcessOwned<ChannelState> state_;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
