#pragma once
/// @file
/// shared_memory::Communicator: enqueues collectives of one host's ranks, which reduce in rank order in memory that all
/// map.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "dtrain/backend/allocation_table.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/mailbox_endpoint.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Owns one rank's channel. Reduces every DType but 8-bit floats, by every ReduceOp, in rank order (see
/// kernels::Reduction): equal bits for every memory, path, progress mode and timing. Work runs in the thread that waits
/// for the stream, or in its helper thread. A rank that waits for peers spins, then sleeps. Threads: one at a time;
/// abort() and failure() from any. The destructor skips work that has not run.
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = HostAllocation;  ///< memory whose collectives in place copy nothing
  using Endpoint = MailboxEndpoint;
  using SelectedAllReduce = message_passing::SelectedAllReduce<Endpoint>;

  /// Collective, blocking. Communicators split from this one also have its `selected`. @throws Error (unsupported,
  /// limit, out_of_memory, timeout, closed), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const SelectedAllReduce& selected = {});

  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  ~Communicator();

  int rank() const noexcept;
  int size() const noexcept;
  const rendezvous::Membership& members() const noexcept;

  /// Operations, which throw Error (unsupported, invalid_argument) at the call.
  /// - If all ranks' inputs are in one allocation, an operation with blocks copies no input, and each reader copies a
  ///   block once; so does an all_reduce in place. Otherwise every rank publishes its input chunk by chunk.
  /// - The sum of squares of an all_reduce in place in an allocation is that of the ranks' slices in rank order, else
  ///   each rank's own.
  /// - An all_reduce by an algorithm that a topology has selected passes all elements through mailboxes.
  /// - A message of up to 128 KiB does not wait for its receiver if no other is in flight.
  /// - exchange_blocks and reduce_blocks allocate a copy of their BlockExchange.
  /// @{
  void enqueue(const AllReduce& call, Stream stream);
  void enqueue(const AllReduceWithSquares& call, Stream stream);
  void enqueue(const Broadcast& call, Stream stream);
  void enqueue(const Barrier& call, Stream stream);
  void enqueue(const ReduceScatter& call, Stream stream);
  void enqueue(const AllGather& call, Stream stream);
  void enqueue(const ReadBlocks& call, Stream stream);
  void enqueue(const ExchangeBlocks& call, Stream stream);
  void enqueue(const ReduceBlocks& call, Stream stream);
  void enqueue(const Send& call, Stream stream);
  void enqueue(const Recv& call, Stream stream);
  void enqueue(const SendRecv& call, Stream stream);
  /// @}

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
  struct ChannelState;

  explicit Communicator(ProcessOwned<ChannelState> owner) noexcept;

  ProcessOwned<ChannelState> owner_;
};

static_assert(backend::Communicator<Communicator> && CanSumSquares<Communicator> && CanReadBlocks<Communicator>);

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

#if DTRAIN_DEFINITIONS

#include <utility>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/shared_memory/collectives/all_gather.hpp"
#include "dtrain/backend/shared_memory/collectives/all_reduce.hpp"
#include "dtrain/backend/shared_memory/collectives/exchange_blocks.hpp"
#include "dtrain/backend/shared_memory/segment.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

inline constexpr const char* backend_name = "backend::SharedMemory";

struct Communicator::ChannelState : ChannelOwner<Channel> {
  ChannelState(const ChannelContext& of, std::shared_ptr<Segment> control, const SelectedAllReduce& selected)
      : ChannelOwner(of, std::move(control)), mailbox(context, *channel, selected) {
    subscribe();
  }
  ~ChannelState() { close(); }

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

  /// @throws Error (unsupported, invalid_argument) unless this rank can run the operation
  template <class Call>
  void check(const Call& call) const {
    check_host_memory(backend_name, call.devices());
    call.check({channel->rank(), channel->size()});
  }

  ArenaTable::Location find(const ConstBufferView& buffer) const noexcept {
    return arenas.find(buffer.data, buffer.bytes());
  }

  /// Descriptor of the next collective, whose buffer is at `location`.
  Operation next_at(const ArenaTable::Location& location, Operation described) const noexcept {
    described.allocation = location.value.number;
    described.offset = location.offset;
    return next(described);
  }

  /// Enqueues a collective whose buffer `located` may be in an allocation. @param make (arena) gives what runs the call
  template <class Call, class Make>
  void enqueue_segment(const Call& call, const ConstBufferView& located, Stream stream, Make make) {
    check(call);
    const ArenaTable::Location location = find(located);
    enqueue(next_at(location, call.describe()), make(location.value.arena), stream);
  }

  /// @tparam Algorithm runs the call; owns a copy of its blocks
  template <class Algorithm, class Call>
  void enqueue_blocks(const Call& call, Stream stream) {
    auto copied = std::make_unique<const BlockExchange>(call.blocks);
    enqueue_segment(call, call.input, stream, [&](const Arena& arena) {
      return Algorithm{call.input.data, call.output.data, arena, copied.get()};
    });
    static_cast<void>(copied.release());
  }

  /// Collective, blocking: checks that every rank reads the nonces that the others wrote into the control block.
  /// @throws Error (unsupported, timeout), JobFailed
  void verify_shared_mapping(std::uint64_t nonce) {
    bool same = true;
    const auto work = [&](Channel&, const Operation&) noexcept {
      channel->control().slot(channel->rank()).nonce = nonce + static_cast<std::uint64_t>(channel->rank());
      if (channel->arrive_and_compare()) {
        for (int peer = 0; peer < channel->size(); ++peer) {
          same = same && channel->control().slot(peer).nonce == nonce + static_cast<std::uint64_t>(peer);
        }
      }
    };
    channel->run(++enqueued, next(Barrier{}.describe()), work);
    ++collectives;
    channel->throw_if_failed();
    if (!same) {
      throw_error(Errc::unsupported,
                  "the ranks of channel '{}' do not see the same memory; use backend::Mpi, Gloo or Nccl between hosts",
                  {channel->name()});
    }
  }

  /// @param to,from -1: no send, or no recv
  template <class Call>
  void transfer(const Call& call, const ConstBufferView& input, int to, const BufferView& output, int from,
                Stream stream) {
    check(call);
    enqueue(call.describe(),
            MailboxTransfer{input.data, output.data, input.count, output.count, &mailbox.endpoint, to, from,
                            input.dtype, output.dtype},
            stream);
  }

  MailboxState mailbox;  ///< used by the channel's work until close()
  ArenaTable arenas;
  std::uint64_t segment_setups = 1;  ///< the first was the control block's
};

DTRAIN_DEFINED Communicator::Communicator(ProcessOwned<ChannelState> owner) noexcept : owner_(std::move(owner)) {}
DTRAIN_DEFINED Communicator::Communicator(Communicator&& other) noexcept = default;
DTRAIN_DEFINED Communicator& Communicator::operator=(Communicator&& other) noexcept = default;
DTRAIN_DEFINED Communicator::~Communicator() = default;

DTRAIN_DEFINED Communicator Communicator::open_blocking(const ChannelContext& context, Deadline deadline,
                                                        const SelectedAllReduce& selected) {
  const std::size_t ranks = static_cast<std::size_t>(context.members.world_size);
  const std::size_t bytes = ControlBlock::bytes_for(context.members.world_size);
  const MappedSegment shared = SegmentSetup(context, 1, (bytes + ranks - 1) / ranks, deadline).run();
  auto owner = make_process_owned<ChannelState>(context, shared.segment, selected);
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

DTRAIN_DEFINED void Communicator::enqueue(const AllReduce& call, Stream stream) {
  enqueue(AllReduceWithSquares{call, nullptr}, stream);
}

DTRAIN_DEFINED void Communicator::enqueue(const AllReduceWithSquares& call, Stream stream) {
  const auto& [input, output, op] = call.all_reduce;
  const auto& selected = owner_->mailbox.selected;
  check_all_reduce_memory(selected.topology, backend_name, call.devices());
  call.check({rank(), size()});
  const ArenaTable::Location location = input.data == output.data ? owner_->find(output) : ArenaTable::Location{};
  const Operation operation = owner_->next_at(location, call.describe());
  if (selected.routine != nullptr && size() > 1) {
    owner_->enqueue(operation, EndpointAllReduce{input.data, output.data, call.squares, &owner_->mailbox}, stream);
    return;
  }
  owner_->enqueue(operation, SegmentAllReduce{input.data, output.data, location.value.arena, call.squares}, stream);
}

DTRAIN_DEFINED void Communicator::enqueue(const Broadcast& call, Stream stream) {
  owner_->enqueue_segment(call, call.buffer, stream, [&](const Arena& arena) {
    return SegmentBroadcast{call.buffer.data, arena};
  });
}

DTRAIN_DEFINED void Communicator::enqueue(const Barrier& call, Stream stream) {
  owner_->enqueue(owner_->next(call.describe()), SegmentBarrier{}, stream);
}

DTRAIN_DEFINED void Communicator::enqueue(const ReduceScatter& call, Stream stream) {
  owner_->enqueue_segment(call, call.input, stream, [&](const Arena& arena) {
    return SegmentReduceScatter{call.input.data, call.output.data, arena};
  });
}

DTRAIN_DEFINED void Communicator::enqueue(const AllGather& call, Stream stream) {
  owner_->enqueue_segment(call, call.input, stream, [&](const Arena& arena) {
    return SegmentAllGather{call.input.data, call.output.data, arena};
  });
}

DTRAIN_DEFINED void Communicator::enqueue(const ReadBlocks& call, Stream stream) {
  owner_->enqueue_segment(call, call.input, stream, [&](const Arena& arena) {
    return SegmentReadBlocks{call.input.data, call.reader, arena};
  });
}

DTRAIN_DEFINED void Communicator::enqueue(const ExchangeBlocks& call, Stream stream) {
  owner_->enqueue_blocks<SegmentExchangeBlocks>(call, stream);
}

DTRAIN_DEFINED void Communicator::enqueue(const ReduceBlocks& call, Stream stream) {
  owner_->enqueue_blocks<SegmentReduceBlocks>(call, stream);
}

DTRAIN_DEFINED void Communicator::enqueue(const Send& call, Stream stream) {
  owner_->transfer(call, call.input, call.peer, BufferView{}, -1, stream);
}

DTRAIN_DEFINED void Communicator::enqueue(const Recv& call, Stream stream) {
  owner_->transfer(call, ConstBufferView{}, -1, call.output, call.peer, stream);
}

DTRAIN_DEFINED void Communicator::enqueue(const SendRecv& call, Stream stream) {
  owner_->transfer(call, call.input, call.to, call.output, call.from, stream);
}

DTRAIN_DEFINED Communicator Communicator::split_blocking(int color, int key, Deadline deadline) {
  owner_->channel->throw_if_failed();
  return open_blocking(owner_->split(color, key, deadline), deadline, owner_->mailbox.selected);
}

DTRAIN_DEFINED HostAllocation Communicator::allocate_blocking(std::size_t bytes, Deadline deadline) {
  owner_->channel->throw_if_failed();
  owner_->context.run_other_streams();
  const auto check = [owner = owner_.get()] {
    owner->context.run_other_streams();
    owner->channel->throw_if_failed();
    owner->throw_if_peer_gone();
  };
  const MappedSegment shared = SegmentSetup(owner_->context, ++owner_->segment_setups, bytes, deadline, check).run();
  owner_->channel->throw_if_failed();
  const Arena arena{shared.segment->base(), shared.stride};
  const std::shared_ptr<std::byte> memory(shared.segment, arena.memory_of(rank()));
  owner_->arenas.add(memory, memory.get(), bytes, {owner_->segment_setups, arena});
  return {memory, bytes};
}

DTRAIN_DEFINED void Communicator::abort(const Cause& cause) noexcept {
  owner_->channel->abort(cause);
}

DTRAIN_DEFINED std::optional<Cause> Communicator::failure() const {
  return owner_->channel->failure();
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

#endif  // DTRAIN_DEFINITIONS
