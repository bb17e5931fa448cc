#pragma once
/// @file
/// Communicator over any message-passing Transport, and the work items by which its operations are enqueued on a
/// stream.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/backend/channel_setup/split.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/message_passing/algorithms/algorithm_selection.hpp"
#include "dtrain/backend/message_passing/algorithms/point_to_point.hpp"
#include "dtrain/backend/message_passing/channel.hpp"
#include "dtrain/backend/message_passing/memory.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A collective. Holds a reference to the channel, and owns `buffers.blocks`, until it has run or was dropped.
template <Transport T>
struct EnqueuedCollective {
  Channel<T>* channel;
  std::uint64_t turn;
  Operation operation;
  Buffers buffers;
  Routine (*algorithm)(OperationContext<typename T::Endpoint>& context, const Buffers& buffers);

  void operator()() noexcept {
    channel->run(turn, operation, [this](auto& context) { return algorithm(context, buffers); });
    drop();
  }
  void drop() noexcept {
    delete buffers.blocks;
    channel->release();
  }
};

/// Buffers of a message, and its peers (-1: none).
struct PointToPointBuffers {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::int32_t to;
  std::int32_t from;
};

namespace detail {

/// Like point_to_point, but a message to this rank itself is stored until its recv.
template <Transport T>
Routine point_to_point_or_self(OperationContext<typename T::Endpoint>& context, Channel<T>& channel,
                               const PointToPointBuffers& buffers, DType input_dtype) {
  PointToPoint work{{}, {}, buffers.to, buffers.from, context.operation, TagClass::direct, nullptr};
  work.sent.count = buffers.input_count;
  work.sent.dtype = input_dtype;
  if (buffers.to >= 0) {
    work.input = {buffers.input, buffers.input_count * size_bytes(input_dtype)};
  }
  if (buffers.from >= 0) {
    work.output = {buffers.output, context.operation.count * size_bytes(context.operation.dtype)};
  }
  if (buffers.to == context.rank()) {
    channel.self_messages().push_back({work.sent, {work.input.begin(), work.input.end()}});
    work.to = -1;
  }
  if (buffers.from == context.rank()) {
    if (channel.self_messages().empty()) {
      throw_error(Errc::disagreement, "on channel '{}', rank {} receives from itself what it has not sent before",
                  {context.channel.name, channel.job_rank()});
    }
    const auto message = std::move(channel.self_messages().front());
    channel.self_messages().pop_front();
    if (message.operation.count != context.operation.count || message.operation.dtype != context.operation.dtype) {
      disagree_on_message(context, context.rank(), message.operation);
    }
    kernels::copy_bytes(work.output.data(), message.bytes.data(), message.bytes.size());
    work.from = -1;
  }
  Routine routine = point_to_point(context, work);
  co_await routine;
}

}  // namespace detail

/// A send, a recv, or both. `operation` describes the received message, or the sent one if there is no recv.
template <Transport T>
struct EnqueuedPointToPoint {
  Channel<T>* channel;
  std::uint64_t turn;
  Operation operation;
  PointToPointBuffers buffers;
  DType input_dtype;

  void operator()() noexcept {
    channel->run(turn, operation, [this](auto& context) {
      return detail::point_to_point_or_self(context, *channel, buffers, input_dtype);
    });
    channel->release();
  }
  void drop() noexcept { channel->release(); }
};

/// Owns one rank's channel. Reduces every DType but 8-bit floats, by every ReduceOp; the bits depend only on the count,
/// the number of ranks and the transport's Tuning. An operation runs in the thread that waits for the stream, or in its
/// helper thread, and blocks that thread until it is done. Threads: one at a time; abort() and failure() from any. The
/// destructor skips work that has not run.
template <Transport T>
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = message_passing::Allocation;
  using Endpoint = typename T::Endpoint;
  using SelectedAllReduce = message_passing::SelectedAllReduce<Endpoint>;

  /// Collective, blocking. Communicators split from this one have its `selected`, too.
  /// @throws Error (timeout, limit, protocol), JobFailed, exceptions of the Transport
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const SelectedAllReduce& selected = {}) {
    return Communicator(context, deadline, selected);
  }

  int rank() const noexcept { return channel().rank(); }
  int size() const noexcept { return channel().size(); }
  const rendezvous::Membership& members() const noexcept { return owner_->context.members; }

  /// Operations, which throw Error (unsupported, invalid_argument) at the call.
  /// - exchange_blocks: each rank sends its blocks directly to their ranks.
  /// - reduce_blocks: each rank reduces its block in rank order, with the bits of SharedMemory, and so receives it from
  ///   every other rank. Both allocate a copy of their BlockExchange.
  /// - Small messages do not wait for their receiver.
  /// @{
  void enqueue(const AllReduce& call, Stream stream) {
    check_all_reduce_memory(owner_->selected.topology, T::backend_name(), call.devices());
    call.check(place());
    const bool selects = owner_->selected.routine != nullptr && size() > 1;
    enqueue_collective(call.describe(), {call.input.data, call.output.data}, stream,
                       selects ? owner_->selected.routine : &collective<Endpoint>);
  }
  void enqueue(const Broadcast& call, Stream stream) {
    check(call);
    enqueue_collective(call.describe(), {call.buffer.data, call.buffer.data}, stream);
  }
  void enqueue(const Barrier& call, Stream stream) { enqueue_collective(call.describe(), {}, stream); }
  void enqueue(const ReduceScatter& call, Stream stream) {
    check(call);
    enqueue_collective(call.describe(), {call.input.data, call.output.data}, stream);
  }
  void enqueue(const AllGather& call, Stream stream) {
    check(call);
    enqueue_collective(call.describe(), {call.input.data, call.output.data}, stream);
  }
  void enqueue(const ExchangeBlocks& call, Stream stream) { enqueue_blocks(call, stream); }
  void enqueue(const ReduceBlocks& call, Stream stream) { enqueue_blocks(call, stream); }
  void enqueue(const Send& call, Stream stream) {
    check(call);
    enqueue_message(call.describe(), {call.input.data, nullptr, call.input.count, call.peer, -1}, call.input.dtype,
                    stream);
  }
  void enqueue(const Recv& call, Stream stream) {
    check(call);
    enqueue_message(call.describe(), {nullptr, call.output.data, 0, -1, call.peer}, call.output.dtype, stream);
  }
  void enqueue(const SendRecv& call, Stream stream) {
    check(call);
    Operation operation = call.describe();
    operation.count = call.output.count;  // of the received message: see EnqueuedPointToPoint
    operation.dtype = call.output.dtype;
    enqueue_message(operation, {call.input.data, call.output.data, call.input.count, call.to, call.from},
                    call.input.dtype, stream);
  }
  /// @}

  /// See CanSplit. @throws Error (invalid_argument) at the call for a negative color; as open_blocking
  Communicator split_blocking(int color, int key, Deadline deadline) {
    channel().throw_if_failed();
    if (owner_->context.on_stall) {
      owner_->context.on_stall();  // peers may need work that this rank has enqueued elsewhere before they call split
    }
    const ChannelContext part = split_context(owner_->context, owner_->splits + 1, color, key, deadline);
    ++owner_->splits;
    return open_blocking(part, deadline, owner_->selected);
  }

  /// See CanAllocate. Ordinary memory, without communication: a rank that is out of memory fails alone.
  /// @throws Error (out_of_memory); the job's first cause, or the channel's
  Allocation allocate_blocking(std::size_t bytes, Deadline /*deadline*/) {
    channel().throw_if_failed();
    return Allocation(bytes);
  }

  /// See CanAbort. The job notifies the peers' channels.
  void abort(const Cause& cause) noexcept { channel().abort(cause); }
  std::optional<Cause> failure() const { return channel().failure(); }

 private:
  Communicator(const ChannelContext& context, Deadline deadline, const SelectedAllReduce& selected)
      : owner_(make_process_owned<ChannelOwner>(context, deadline, selected)) {}

  /// State with a stable address while the communicator moves.
  struct ChannelOwner {
    ChannelOwner(const ChannelContext& of, Deadline deadline, const SelectedAllReduce& all_reduce)
        : context(of),
          selected(all_reduce),
          channel(new Channel<T>(context, context.members.ranks_in_job(), deadline)) {
      try {
        subscription = context.failure->subscribe([this](const Cause& cause) { channel->abort(cause); });
      } catch (...) {
        channel->close(0);
        channel->release();
        throw;
      }
    }
    ChannelOwner(const ChannelOwner&) = delete;
    ChannelOwner& operator=(const ChannelOwner&) = delete;
    ~ChannelOwner() {
      subscription.reset();
      channel->close(enqueued);
      channel->release();
    }

    const ChannelContext context;
    const SelectedAllReduce selected;
    Channel<T>* channel;
    std::uint64_t enqueued = 0;     ///< operations of every kind
    std::uint64_t collectives = 0;  ///< operations of all ranks, without point to point
    std::uint64_t splits = 0;
    FailureLatch::Subscription subscription;
  };

  Channel<T>& channel() const noexcept { return *owner_->channel; }

  RankPlace place() const noexcept { return {rank(), size()}; }

  template <class Call>
  void check(const Call& call) const {
    check_host_memory(T::backend_name(), call.devices());
    call.check(place());
  }

  /// Counts the collective, after success only.
  void enqueue_collective(Operation operation, const Buffers& buffers, Stream stream,
                          Routine (*algorithm)(OperationContext<Endpoint>&, const Buffers&) = &collective<Endpoint>) {
    operation.sequence = owner_->collectives + 1;
    enqueue_work(EnqueuedCollective<T>{owner_->channel, owner_->enqueued + 1, operation, buffers, algorithm}, stream);
    ++owner_->collectives;
  }

  template <class Call>
  void enqueue_blocks(const Call& call, Stream stream) {
    check(call);
    auto copied = std::make_unique<const BlockExchange>(call.blocks);
    enqueue_collective(call.describe(), {call.input.data, call.output.data, copied.get()}, stream);
    static_cast<void>(copied.release());
  }

  void enqueue_message(const Operation& operation, const PointToPointBuffers& buffers, DType input_dtype,
                       Stream stream) {
    enqueue_work(EnqueuedPointToPoint<T>{owner_->channel, owner_->enqueued + 1, operation, buffers, input_dtype},
                 stream);
  }

  template <class Work>
  void enqueue_work(const Work& work, Stream stream) {
    channel().retain();
    try {
      stream.enqueue(work);
    } catch (...) {
      channel().release();
      throw;
    }
    ++owner_->enqueued;
  }

  ProcessOwned<ChannelOwner> owner_;
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
