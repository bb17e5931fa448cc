#pragma once
/// @file
/// Communicator over any message-passing Transport, and the work items by which its operations are enqueued on a
/// stream. Gloo's and Mpi's open_blocking() make one.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/message_passing/algorithms/algorithm_selection.hpp"
#include "dtrain/backend/message_passing/algorithms/point_to_point.hpp"
#include "dtrain/backend/message_passing/channel.hpp"
#include "dtrain/backend/message_passing/memory.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/ordered_channel.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A collective. Owns `buffers.blocks` until release().
template <Endpoint E>
struct CollectiveAlgorithm {
  Buffers buffers;
  Routine (*algorithm)(OperationContext<E>& context, const Buffers& buffers);

  template <class Channel>
  Routine operator()(OperationContext<E>& context, Channel& /*channel*/) const {
    return algorithm(context, buffers);
  }
  void release() const noexcept { delete buffers.blocks; }
};

/// A send, a recv, or both, with the peers (-1: none). The operation describes the received message, or the sent one if
/// there is no recv.
struct MessageAlgorithm {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::int32_t to;
  std::int32_t from;
  DType input_dtype;

  template <Endpoint E, class Channel>
  Routine operator()(OperationContext<E>& context, Channel& channel) const {
    return point_to_point_or_self(context, channel, *this);
  }

 private:
  /// Like point_to_point, but a message to this rank itself is stored until its recv.
  template <Endpoint E, class Channel>
  static Routine point_to_point_or_self(OperationContext<E>& context, Channel& channel,
                                        const MessageAlgorithm& message) {
    PointToPoint work{{}, {}, message.to, message.from, context.operation, TagClass::direct, nullptr};
    work.sent.count = message.input_count;
    work.sent.dtype = message.input_dtype;
    if (message.to >= 0) {
      work.input = {message.input, message.input_count * size_bytes(message.input_dtype)};
    }
    if (message.from >= 0) {
      work.output = {message.output, context.operation.count * size_bytes(context.operation.dtype)};
    }
    if (message.to == context.rank()) {
      channel.self_messages().push_back({work.sent, {work.input.begin(), work.input.end()}});
      work.to = -1;
    }
    if (message.from == context.rank()) {
      if (channel.self_messages().empty()) {
        throw_error(Errc::disagreement, "on channel '{}', rank {} receives from itself what it has not sent before",
                    {context.channel.name, channel.job_rank()});
      }
      const auto stored = std::move(channel.self_messages().front());
      channel.self_messages().pop_front();
      if (stored.operation.count != context.operation.count || stored.operation.dtype != context.operation.dtype) {
        detail::disagree_on_message(context, context.rank(), stored.operation);
      }
      kernels::copy_bytes(work.output.data(), stored.bytes.data(), stored.bytes.size());
      work.from = -1;
    }
    Routine routine = point_to_point(context, work);
    co_await routine;
  }
};

/// Owns one rank's channel. Reduces every DType but 8-bit floats, by every ReduceOp; the bits depend only on the count,
/// the number of ranks and the transport's Tuning. An operation runs in the thread that waits for the stream, or in its
/// helper thread, and blocks that thread until it is done. Threads: one at a time; abort() and failure() from any. The
/// destructor skips work that has not run.
template <Transport T>
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = HostAllocation;
  using Endpoint = typename T::Endpoint;
  using SelectedAllReduce = message_passing::SelectedAllReduce<Endpoint>;

  /// Collective, blocking. Communicators split from this one have its `selected`, too.
  /// @throws Error (timeout, limit, protocol), JobFailed, exceptions of the Transport
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const SelectedAllReduce& selected = {}) {
    Communicator opened(context, deadline, selected);
    opened.owner_->subscribe();
    return opened;
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
    check_all_reduce_memory(selected_.topology, T::backend_name(), call.devices());
    call.check(place());
    const bool selects = selected_.routine != nullptr && size() > 1;
    enqueue_collective(call.describe(), {call.input.data, call.output.data}, stream,
                       selects ? selected_.routine : &collective<Endpoint>);
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
    owner_->enqueue(call.describe(),
                    MessageAlgorithm{call.input.data, nullptr, call.input.count, call.peer, -1, call.input.dtype},
                    stream);
  }
  void enqueue(const Recv& call, Stream stream) {
    check(call);
    owner_->enqueue(call.describe(), MessageAlgorithm{nullptr, call.output.data, 0, -1, call.peer, call.output.dtype},
                    stream);
  }
  void enqueue(const SendRecv& call, Stream stream) {
    check(call);
    Operation operation = call.describe();
    operation.count = call.output.count;  // of the received message: see MessageAlgorithm
    operation.dtype = call.output.dtype;
    owner_->enqueue(
        operation,
        MessageAlgorithm{call.input.data, call.output.data, call.input.count, call.to, call.from, call.input.dtype},
        stream);
  }
  /// @}

  /// See CanSplit. @throws Error (invalid_argument) at the call for a negative color; as open_blocking
  Communicator split_blocking(int color, int key, Deadline deadline) {
    channel().throw_if_failed();
    return open_blocking(owner_->split(color, key, deadline), deadline, selected_);
  }

  /// See CanAllocate. Ordinary memory, without communication: a rank that is out of memory fails alone.
  /// @throws Error (out_of_memory); the job's first cause, or the channel's
  Allocation allocate_blocking(std::size_t bytes, Deadline /*deadline*/) {
    channel().throw_if_failed();
    return allocate_zeroed(bytes);
  }

  /// See CanAbort. The job notifies the peers' channels.
  void abort(const Cause& cause) noexcept { channel().abort(cause); }
  std::optional<Cause> failure() const { return channel().failure(); }

 private:
  Communicator(const ChannelContext& context, Deadline deadline, const SelectedAllReduce& selected)
      : owner_(make_process_owned<ChannelOwner<Channel<T>>>(context, context.members.ranks_in_job(), deadline)),
        selected_(selected) {}

  Channel<T>& channel() const noexcept { return *owner_->channel; }

  RankPlace place() const noexcept { return {rank(), size()}; }

  template <class Call>
  void check(const Call& call) const {
    check_host_memory(T::backend_name(), call.devices());
    call.check(place());
  }

  void enqueue_collective(const Operation& operation, const Buffers& buffers, Stream stream,
                          Routine (*algorithm)(OperationContext<Endpoint>&, const Buffers&) = &collective<Endpoint>) {
    owner_->enqueue(owner_->next(operation), CollectiveAlgorithm<Endpoint>{buffers, algorithm}, stream);
  }

  template <class Call>
  void enqueue_blocks(const Call& call, Stream stream) {
    check(call);
    auto copied = std::make_unique<const BlockExchange>(call.blocks);
    enqueue_collective(call.describe(), {call.input.data, call.output.data, copied.get()}, stream);
    static_cast<void>(copied.release());
  }

  ProcessOwned<ChannelOwner<Channel<T>>> owner_;
  SelectedAllReduce selected_;
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
