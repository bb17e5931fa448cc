#pragma once
/// @file
/// nccl::Communicator: collectives of device memory over NCCL, in order on CUDA streams. Allocation: device memory
/// registered with NCCL.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/nccl/calls.hpp"
#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/backend/nccl/first_calls.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/backend/nccl/opening.hpp"
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
/// open_blocking(). Operations run on the stream; the host waits until NCCL has launched them, and before that while
/// InflightRing::capacity earlier ones are in flight: ranks must not wait for each other in another way meanwhile.
/// After a failure of the channel operations throw its cause. Operations can be captured in CUDA graphs, alike on all
/// ranks. A graph's run time is not watched, and the graph is destroyed before the communicator. Threads: one at a
/// time, abort() and failure() from any. Destruction, blocking: until the enqueued work has run or failed, then until
/// all ranks of the node close their ends, at most ten seconds. After ten seconds it logs a warning and abandons NCCL
/// to a thread.
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
    const int device = stream::cuda::current_device();
    const auto root = std::make_shared<RootChannel>(context, options, device);
    reporting_failure(context, [&] { connect_blocking(*root->channel(), deadline); });
    return open_channel_blocking(root, context, deadline);
  }

  int rank() const noexcept { return state_->channel->context.members.rank; }
  int size() const noexcept { return state_->channel->context.members.world_size; }
  const rendezvous::Membership& members() const noexcept { return state_->channel->context.members; }

  /// Operations, which throw Error (unsupported, invalid_argument) at the call.
  /// - exchange_blocks: NCCL compares no counts; if those of two ranks differ, the operation times out.
  /// - A send of any size may wait for its receiver.
  /// - Several all-gathers are one operation of the channel, with one number, and one group of NCCL's.
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
      return issue_calls(call, {by, rank(), stream});
    });
  }
  void enqueue(std::span<const AllGather> calls, Stream stream) {
    for (const AllGather& call : calls) {
      call.check(place());
      check_devices(state_->channel->context.name, state_->channel->device(), call.devices(), stream.device());
    }
    if (calls.empty()) return;
    collective(describe_together(calls), calls.front().devices(), "ncclAllGather", stream, [&](ncclComm_t by) {
      return issue_calls(calls, {by, rank(), stream});
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
    Channel& own = *state_->channel;
    own.status.check();
    const ChannelContext child = split_context(own.context, state_->splits + 1, color, key, deadline);
    ++state_->splits;
    const auto root =
        reporting_failure(child, [&] { return std::make_shared<RootChannel>(child, own.options, own.device()); });
    reporting_failure(child, [&] {  // the root must not end before this
      require_idle(child, deadline);
      nccl::split_blocking(state_->root->channel(), *root->channel(), color, key, deadline);
    });
    return open_channel_blocking(root, child, deadline);
  }

  /// See CanDuplicate. @throws as split_blocking
  Communicator duplicate_blocking(const ChannelContext& context, Deadline deadline) {
    state_->channel->status.check();
    reporting_failure(context, [&] { require_idle(context, deadline); });
    return open_channel_blocking(state_->root, context, deadline);
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
    ChannelState(std::shared_ptr<RootChannel> of, const ChannelContext& context, Deadline deadline)
        : root(std::move(of)),
          channel(std::make_shared<Channel>(context, root->channel()->options, root->channel()->device(),
                                            launches_of(root->channel()->options))),
          token(sizeof(std::int32_t), channel->device()) {
      zero_blocking(token.data(), token.bytes(), channel->device(), deadline);
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

    const std::shared_ptr<RootChannel> root;  ///< ends after the channel; those of duplicates share it
    const std::shared_ptr<Channel> channel;
    const stream::cuda::DeviceBuffer token;  ///< operand of a barrier
    std::uint64_t collectives = 0;           ///< operations that every rank takes part in
    std::uint64_t splits = 0;
    std::optional<Watchdog> watchdog;
    FailureLatch::Subscription subscription;
  };

  explicit Communicator(ProcessOwned<ChannelState> state) noexcept : state_(std::move(state)) {}

  /// Collective, blocking: a channel of the root's ranks.
  static Communicator open_channel_blocking(const std::shared_ptr<RootChannel>& root, const ChannelContext& context,
                                            Deadline deadline) {
    auto state = reporting_failure(context, [&] { return make_process_owned<ChannelState>(root, context, deadline); });
    reporting_failure(
        context, [&] { nccl::split_blocking(root->channel(), *state->channel, 0, context.members.rank, deadline); });
    state->serve();
    return Communicator(std::move(state));
  }

  /// Blocking. NCCL might deadlock if it opened the channel `next` while work of this one waits for other ranks.
  /// @throws Error (timeout)
  void require_idle(const ChannelContext& next, Deadline deadline) {
    Channel& own = *state_->channel;
    if (block_until_idle(own, deadline)) return;
    throw Error(Errc::timeout,
                format_text("opening channel '{}' from channel '{}': the work enqueued on that one had not run in "
                            "time; does every rank enqueue it?",
                            {next.name, own.context.name}))
        .with_rank(next.reporting_rank());
  }

  RankPlace place() const noexcept { return {rank(), size()}; }

  /// Issues the next collective, and counts it once it is enqueued.
  template <class Call>
  void collective(Operation operation, const Devices& devices, const char* function, Stream stream, Call call) {
    operation.sequence = state_->collectives + 1;
    issue(operation, {}, devices, function, stream, call);
    ++state_->collectives;
  }

  template <class Message>
  void message(const Message& call, const char* function, Stream stream) {
    call.check(place());
    issue(call.describe(), paths_of(call, rank()), call.devices(), function, stream, [&](ncclComm_t by) {
      return issue_calls(call, {by, rank(), stream});
    });
  }

  template <class Call>
  void issue(const Operation& operation, std::span<const MessagePath> paths, const Devices& devices,
             const char* function, Stream stream, Call call) {
    check_devices(state_->channel->context.name, state_->channel->device(), devices, stream.device());
    state_->channel->issue(operation, paths, function, stream, call);
  }

  ProcessOwned<ChannelState> state_;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
