#pragma once
/// @file
/// Communicator of ranks that share one host's memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/mailbox_endpoint.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// An enqueued operation. Holds a reference to the channel, and what the algorithm owns, until it has run or was
/// dropped.
template <class Algorithm>
struct EnqueuedOperation {
  Channel* channel;
  std::uint64_t turn;
  Operation operation;
  Algorithm algorithm;

  void operator()() noexcept {
    channel->run(turn, operation, [this]() noexcept { algorithm(*channel, operation); });
    drop();
  }
  void drop() noexcept {
    if constexpr (requires { algorithm.release(); }) {
      algorithm.release();
    }
    channel->release();
  }
};

/// Owns one rank's channel. Reduces every DType but 8-bit floats, by every ReduceOp, in rank order (see
/// kernels::Reduction): equal bits for every memory, path, progress mode and timing. Work runs in the thread that waits
/// for the stream, or in its helper thread. A rank that waits for peers spins, then sleeps. Threads: one at a time;
/// abort() and failure() from any. The destructor skips work that has not run.
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = shared_memory::Allocation;
  using Endpoint = MailboxEndpoint;
  using SelectedAllReduce = message_passing::SelectedAllReduce<Endpoint>;

  /// Collective, blocking. Called by SharedMemory::open_blocking and split_blocking. Communicators split from this one
  /// have its `selected`, too. @throws Error (unsupported, limit, out_of_memory, timeout, closed), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const SelectedAllReduce& selected = {});

  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  ~Communicator();

  int rank() const noexcept;
  int size() const noexcept;
  const rendezvous::Membership& members() const noexcept;

  /// See CanAllReduce and CanSumSquares. Copies nothing if it is in place on an allocation; the sum of squares is then
  /// that of the ranks' slices in rank order, else each rank's own. An algorithm that a topology has selected passes
  /// all elements through mailboxes. All operations throw Error (unsupported, invalid_argument) at the call.
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream, double* squares = nullptr);

  /// See CanBroadcast.
  void broadcast(BufferView buffer, int root, Stream stream);

  /// See CanReduceScatter. `output` may be this rank's block of `input`. Copies nothing if all inputs are in one
  /// allocation.
  void reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op, Stream stream);

  /// See CanAllGather. `input` may be this rank's block of `output`. If all inputs are in one allocation, each reader
  /// copies them once.
  void all_gather(ConstBufferView input, BufferView output, Stream stream);

  /// See CanReadBlocks. If all inputs are in one allocation, the parts are of the peers' own memory; else of copies.
  void read_blocks(ConstBufferView input, const BlockReader& reader, Stream stream);

  /// See CanExchangeBlocks. If all inputs are in one allocation, each reader copies its blocks once; otherwise every
  /// rank publishes its blocks chunk by chunk. Allocates a copy of `blocks`.
  void exchange_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output, Stream stream);

  /// See CanReduceBlocks. Copies nothing if all inputs are in one allocation. Allocates a copy of `blocks`.
  void reduce_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output, ReduceOp op, Stream stream);

  /// See CanSendRecv. A message of up to 128 KiB does not wait for its receiver if no other is in flight.
  void send(ConstBufferView input, int peer, Stream stream);
  void recv(BufferView output, int peer, Stream stream);
  void send_recv(ConstBufferView input, int to, BufferView output, int from, Stream stream);

  /// See CanBarrier.
  void barrier(Stream stream);

  /// See CanSplit. @throws Error (invalid_argument) at the call for a negative color; as open_blocking
  Communicator split_blocking(int color, int key, Deadline deadline);

  /// See CanAllocate. Each rank's memory is aligned to pages, from 2 MiB on to huge pages; its pages are on the rank's
  /// own NUMA node. An error occurs on every rank, and the channel stays usable.
  /// @throws Error (disagreement, out_of_memory, timeout), JobFailed
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline);

  /// See CanAbort. Peers' communicators on this channel fail with the same cause.
  void abort(const Cause& cause) noexcept;
  std::optional<Cause> failure() const;

 private:
  struct ChannelOwner;

  explicit Communicator(ProcessOwned<ChannelOwner> owner) noexcept;

  ProcessOwned<ChannelOwner> owner_;
};

static_assert(backend::Communicator<Communicator> && CanSumSquares<Communicator> && CanReadBlocks<Communicator>);

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

#if DTRAIN_DEFINITIONS

#include <utility>

#include "dtrain/backend/channel_setup/split.hpp"
#include "dtrain/backend/check_arguments.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/shared_memory/collectives/all_gather.hpp"
#include "dtrain/backend/shared_memory/collectives/all_reduce.hpp"
#include "dtrain/backend/shared_memory/collectives/broadcast.hpp"
#include "dtrain/backend/shared_memory/collectives/exchange_blocks.hpp"
#include "dtrain/backend/shared_memory/collectives/reduce_scatter.hpp"
#include "dtrain/backend/shared_memory/segment_setup.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

inline constexpr const char* backend_name = "backend::SharedMemory";

/// State with a stable address while the communicator moves.
struct Communicator::ChannelOwner {
  ChannelOwner(const ChannelContext& of, std::shared_ptr<Segment> control, const SelectedAllReduce& selected)
      : context(of), channel(new Channel(context, std::move(control))), mailbox(context, *channel, selected) {
    subscription = context.failure->subscribe([this](const Cause& cause) { channel->abort(cause); });
  }
  ChannelOwner(const ChannelOwner&) = delete;
  ChannelOwner& operator=(const ChannelOwner&) = delete;
  ~ChannelOwner() {
    subscription.reset();
    channel->close(enqueued);
    channel->release();
  }

  /// Starts this rank's work on other streams before it waits here, because peers may need that work first.
  void run_other_streams() const {
    if (context.on_stall) {
      context.on_stall();
    }
  }

  /// @throws Error (disagreement) if a peer has closed the channel; with its cause if a peer's has failed
  void throw_if_peer_gone() const {
    const ControlBlock& control = channel->control();
    for (int peer = 0; peer < channel->size(); ++peer) {
      const SlotState state = control.slot(peer).state.load();
      if (peer != channel->rank() && state == SlotState::failed) {
        throw_cause(control.slot(peer).cause.load());
      }
      if (peer != channel->rank() && state == SlotState::closed) {
        throw_error(Errc::disagreement,
                    "allocating memory on channel '{}': rank {} has left the channel; every rank calls the same "
                    "collectives",
                    {context.name, control.job_rank(peer)});
      }
    }
  }

  /// Descriptor of the next collective. enqueue() counts it, after success only.
  Operation next(OperationKind kind, const ConstBufferView& buffer,
                 const ArenaTable::Location& location) const noexcept {
    Operation operation;
    operation.sequence = collectives + 1;
    operation.kind = kind;
    operation.count = buffer.count;
    operation.dtype = buffer.dtype;
    operation.allocation = location.value.number;
    operation.offset = location.offset;
    return operation;
  }

  template <class Algorithm>
  void enqueue(const Operation& operation, const Algorithm& algorithm, Stream stream) {
    channel->retain();
    try {
      stream.enqueue(EnqueuedOperation<Algorithm>{channel, enqueued + 1, operation, algorithm});
    } catch (...) {
      channel->release();
      throw;
    }
    ++enqueued;
    collectives += operation.sequence != 0 ? 1 : 0;
  }

  /// @tparam Algorithm of the blocks; owns a copy of them
  template <class Algorithm>
  void enqueue_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output, ReduceOp op,
                      Stream stream) {
    const ArenaTable::Location location = arenas.find(input.data, input.bytes());
    Operation operation = operation_of(blocks, input.dtype, op, collectives + 1);
    operation.allocation = location.value.number;
    operation.offset = location.offset;
    auto copied = std::make_unique<const BlockExchange>(blocks);
    enqueue(operation, Algorithm{input.data, output.data, location.value.arena, copied.get()}, stream);
    static_cast<void>(copied.release());
  }

  /// Collective, blocking: checks that every rank reads the nonces that the others wrote into the control block.
  /// @throws Error (unsupported, timeout), JobFailed
  void verify_shared_mapping(std::uint64_t nonce) {
    bool same = true;
    const auto work = [&]() noexcept {
      channel->control().slot(channel->rank()).nonce = nonce + static_cast<std::uint64_t>(channel->rank());
      if (channel->arrive_and_compare()) {
        for (int peer = 0; peer < channel->size(); ++peer) {
          same = same && channel->control().slot(peer).nonce == nonce + static_cast<std::uint64_t>(peer);
        }
      }
    };
    channel->run(++enqueued, next(OperationKind::barrier, ConstBufferView{}, {}), work);
    ++collectives;
    channel->throw_if_failed();
    if (!same) {
      throw_error(Errc::unsupported,
                  "the ranks of channel '{}' do not see the same memory; use backend::Mpi, Gloo or Nccl between hosts",
                  {channel->name()});
    }
  }

  void transfer(OperationKind kind, ConstBufferView input, int to, BufferView output, int from, Stream stream) {
    check_host_memory(backend_name, input, output);
    const bool sends = to >= 0;
    Operation operation;
    operation.kind = kind;
    operation.count = sends ? input.count : output.count;
    operation.dtype = sends ? input.dtype : output.dtype;
    operation.root = sends ? to : from;
    enqueue(operation,
            MailboxTransfer{input.data, output.data, input.count, output.count, &mailbox.endpoint, to, from,
                            input.dtype, output.dtype},
            stream);
  }

  const ChannelContext context;
  Channel* channel;
  MailboxState mailbox;  ///< used by the channel's work until close()
  ArenaTable arenas;
  std::uint64_t enqueued = 0;        ///< operations of every kind
  std::uint64_t collectives = 0;     ///< operations of all ranks, without point to point
  std::uint64_t segment_setups = 1;  ///< the first was the control block's
  std::uint64_t splits = 0;
  FailureLatch::Subscription subscription;
};

DTRAIN_DEFINED Communicator::Communicator(ProcessOwned<ChannelOwner> owner) noexcept : owner_(std::move(owner)) {}
DTRAIN_DEFINED Communicator::Communicator(Communicator&& other) noexcept = default;
DTRAIN_DEFINED Communicator& Communicator::operator=(Communicator&& other) noexcept = default;
DTRAIN_DEFINED Communicator::~Communicator() = default;

DTRAIN_DEFINED Communicator Communicator::open_blocking(const ChannelContext& context, Deadline deadline,
                                                        const SelectedAllReduce& selected) {
  const std::size_t ranks = static_cast<std::size_t>(context.members.world_size);
  const std::size_t bytes = ControlBlock::bytes_for(context.members.world_size);
  const MappedSegment shared = SegmentSetup(context, 1, (bytes + ranks - 1) / ranks, deadline).run();
  auto owner = make_process_owned<ChannelOwner>(context, shared.segment, selected);
  owner->verify_shared_mapping(shared.nonce);
  return Communicator(std::move(owner));
}

DTRAIN_DEFINED int Communicator::rank() const noexcept {
  return owner_->channel->rank();
}

DTRAIN_DEFINED const rendezvous::Membership& Communicator::members() const noexcept {
  return owner_->context.members;
}

DTRAIN_DEFINED int Communicator::size() const noexcept {
  return owner_->channel->size();
}

DTRAIN_DEFINED void Communicator::all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream,
                                             double* squares) {
  const auto& selected = owner_->mailbox.selected;
  check_all_reduce_memory(selected.topology, backend_name, input, output);
  check_all_reduce(input, output);
  const ArenaTable::Location location =
      input.data == output.data ? owner_->arenas.find(output.data, output.bytes()) : ArenaTable::Location{};
  Operation operation = owner_->next(OperationKind::all_reduce, output, location);
  operation.op = op;
  operation.sums_squares = squares != nullptr;
  if (selected.routine != nullptr && size() > 1) {
    owner_->enqueue(operation, EndpointAllReduce{input.data, output.data, squares, &owner_->mailbox}, stream);
    return;
  }
  owner_->enqueue(operation, AllReduce{input.data, output.data, location.value.arena, squares}, stream);
}

DTRAIN_DEFINED void Communicator::broadcast(BufferView buffer, int root, Stream stream) {
  check_host_memory(backend_name, buffer, buffer);
  check_broadcast(buffer, root, size());
  const ArenaTable::Location location = owner_->arenas.find(buffer.data, buffer.bytes());
  Operation operation = owner_->next(OperationKind::broadcast, buffer, location);
  operation.root = root;
  owner_->enqueue(operation, Broadcast{buffer.data, location.value.arena}, stream);
}

DTRAIN_DEFINED void Communicator::reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
  check_host_memory(backend_name, input, output);
  check_reduce_scatter(input, output, rank(), size());
  const ArenaTable::Location location = owner_->arenas.find(input.data, input.bytes());
  Operation operation = owner_->next(OperationKind::reduce_scatter, output, location);
  operation.op = op;
  owner_->enqueue(operation, ReduceScatter{input.data, output.data, location.value.arena}, stream);
}

DTRAIN_DEFINED void Communicator::all_gather(ConstBufferView input, BufferView output, Stream stream) {
  check_host_memory(backend_name, input, output);
  check_all_gather(input, output, rank(), size());
  const ArenaTable::Location location = owner_->arenas.find(input.data, input.bytes());
  owner_->enqueue(owner_->next(OperationKind::all_gather, input, location),
                  AllGather{input.data, output.data, location.value.arena}, stream);
}

DTRAIN_DEFINED void Communicator::read_blocks(ConstBufferView input, const BlockReader& reader, Stream stream) {
  check_host_memory(backend_name, input, input);
  const ArenaTable::Location location = owner_->arenas.find(input.data, input.bytes());
  owner_->enqueue(owner_->next(OperationKind::all_gather, input, location),
                  ReadBlocks{input.data, reader, location.value.arena}, stream);
}

DTRAIN_DEFINED void Communicator::exchange_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output,
                                                  Stream stream) {
  check_host_memory(backend_name, input, output);
  check_exchange(blocks, input, output, rank(), size());
  owner_->enqueue_blocks<ExchangeBlocks>(blocks, input, output, ReduceOp::sum, stream);
}

DTRAIN_DEFINED void Communicator::reduce_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output,
                                                ReduceOp op, Stream stream) {
  check_host_memory(backend_name, input, output);
  check_block_reduction(blocks, input, output, rank(), size());
  owner_->enqueue_blocks<ReduceBlocks>(blocks, input, output, op, stream);
}

DTRAIN_DEFINED void Communicator::send(ConstBufferView input, int peer, Stream stream) {
  check_message("send", input, peer, rank(), size());
  owner_->transfer(OperationKind::send, input, peer, BufferView{}, -1, stream);
}

DTRAIN_DEFINED void Communicator::recv(BufferView output, int peer, Stream stream) {
  check_message("recv", output, peer, rank(), size());
  owner_->transfer(OperationKind::recv, ConstBufferView{}, -1, output, peer, stream);
}

DTRAIN_DEFINED void Communicator::send_recv(ConstBufferView input, int to, BufferView output, int from, Stream stream) {
  check_send_recv(input, to, output, from, size());
  owner_->transfer(OperationKind::send_recv, input, to, output, from, stream);
}

DTRAIN_DEFINED void Communicator::barrier(Stream stream) {
  owner_->enqueue(owner_->next(OperationKind::barrier, ConstBufferView{}, {}), Barrier{}, stream);
}

DTRAIN_DEFINED Communicator Communicator::split_blocking(int color, int key, Deadline deadline) {
  owner_->channel->throw_if_failed();
  owner_->run_other_streams();
  const ChannelContext part = split_context(owner_->context, owner_->splits + 1, color, key, deadline);
  ++owner_->splits;
  return open_blocking(part, deadline, owner_->mailbox.selected);
}

DTRAIN_DEFINED Allocation Communicator::allocate_blocking(std::size_t bytes, Deadline deadline) {
  owner_->channel->throw_if_failed();
  owner_->run_other_streams();
  const auto check = [owner = owner_.get()] {
    owner->run_other_streams();
    owner->channel->throw_if_failed();
    owner->throw_if_peer_gone();
  };
  const MappedSegment shared = SegmentSetup(owner_->context, ++owner_->segment_setups, bytes, deadline, check).run();
  owner_->channel->throw_if_failed();
  const Arena arena{shared.segment->base(), shared.stride};
  owner_->arenas.add(shared.segment, arena.memory_of(rank()), bytes, {owner_->segment_setups, arena});
  return {shared.segment, arena.memory_of(rank()), bytes};
}

DTRAIN_DEFINED void Communicator::abort(const Cause& cause) noexcept {
  owner_->channel->abort(cause);
}

DTRAIN_DEFINED std::optional<Cause> Communicator::failure() const {
  return owner_->channel->failure();
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

#endif  // DTRAIN_DEFINITIONS
