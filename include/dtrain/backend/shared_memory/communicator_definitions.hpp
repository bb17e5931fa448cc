#pragma once
/// @file
/// The functions of shared_memory::Communicator.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/backend/arguments.hpp"
#include "dtrain/backend/shared_memory/all_gather.hpp"
#include "dtrain/backend/shared_memory/all_reduce.hpp"
#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/broadcast.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/communicator.hpp"
#include "dtrain/backend/shared_memory/reduce_scatter.hpp"
#include "dtrain/backend/shared_memory/sharing.hpp"
#include "dtrain/backend/shared_memory/transfer.hpp"
#include "dtrain/backend/split.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

namespace detail {

inline void check_host(const ConstBufferView& input, const ConstBufferView& output) {
  check_host_memory("backend::SharedMemory", input, output);
}

}  // namespace detail

/// An enqueued operation: holds the channel until it has run or was dropped.
template <class Algorithm>
struct ChannelWork {
  Channel* channel;
  std::uint64_t turn;
  Operation operation;
  Algorithm algorithm;

  void operator()() noexcept {
    channel->run(turn, operation, [this]() noexcept { algorithm(*channel, operation); });
    channel->release();
  }
  void drop() noexcept { channel->release(); }
};

/// What stays at its address when the communicator moves.
struct Communicator::End {
  End(const ChannelContext& of, Links to, std::shared_ptr<Segment> control)
      : context(of), links(std::move(to)), channel(new Channel(context, std::move(control))) {
    links.set_check([this] {
      help_others();
      check();
    });
    subscription = context.failure->subscribe([this](const Cause& cause) { channel->abort(cause); });
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    subscription.reset();
    channel->close(enqueued);
    channel->release();
  }

  /// What this rank has enqueued elsewhere runs while it waits here: others may wait for that before they come.
  void help_others() const {
    if (context.on_stall) {
      context.on_stall();
    }
  }

  /// @throws the job's first cause, or this channel's.
  void check() const {
    channel->latch()->throw_if_failed(channel->job_rank());
    if (const std::optional<Cause> cause = channel->failure()) {
      throw_cause(*cause);
    }
  }

  /// The next collective. Nothing is counted before it is enqueued.
  Operation next(OperationKind kind, const ConstBufferView& buffer, const ArenaTable::Place& place) const noexcept {
    Operation operation;
    operation.sequence = collectives + 1;
    operation.kind = kind;
    operation.count = buffer.count;
    operation.dtype = buffer.dtype;
    operation.allocation = place.allocation;
    operation.offset = place.offset;
    return operation;
  }

  template <class Algorithm>
  void enqueue(const Operation& operation, const Algorithm& algorithm, Stream stream) {
    channel->retain();
    try {
      stream.enqueue(ChannelWork<Algorithm>{channel, enqueued + 1, operation, algorithm});
    } catch (...) {
      channel->release();
      throw;
    }
    ++enqueued;
    collectives += operation.sequence != 0 ? 1 : 0;
  }

  /// Collective, blocking: every rank finds what the others wrote into the control block. @throws Error (unsupported,
  /// timeout), JobFailed
  void prove_one_memory(std::uint64_t nonce) {
    bool same = true;
    const auto work = [&]() noexcept {
      channel->control().slot(channel->rank()).nonce = nonce + static_cast<std::uint64_t>(channel->rank());
      if (channel->meet_and_compare()) {
        for (int peer = 0; peer < channel->size(); ++peer) {
          same = same && channel->control().slot(peer).nonce == nonce + static_cast<std::uint64_t>(peer);
        }
      }
    };
    channel->run(++enqueued, next(OperationKind::barrier, ConstBufferView{}, {}), work);
    ++collectives;
    check();
    if (!same) {
      throw Error(Errc::unsupported, "the ranks of channel '" + channel->name() +
                                         "' do not see the same memory; use backend::Mpi, Gloo or Nccl between hosts");
    }
  }

  void transfer(OperationKind kind, ConstBufferView input, int to, BufferView output, int from, Stream stream) {
    detail::check_host(input, output);
    const bool sends = to >= 0;
    Operation operation;
    operation.kind = kind;
    operation.count = sends ? input.count : output.count;
    operation.dtype = sends ? input.dtype : output.dtype;
    operation.root = sends ? to : from;
    enqueue(operation,
            Transfer{input.data, output.data, input.count, output.count, input.dtype, output.dtype, to, from}, stream);
  }

  const ChannelContext context;
  Links links;
  Channel* channel;
  ArenaTable arenas;
  std::uint64_t enqueued = 0;     ///< operations of every kind
  std::uint64_t collectives = 0;  ///< those that every rank takes part in
  std::uint64_t exchanges = 1;    ///< the first was the control block's
  std::uint64_t splits = 0;
  FailureLatch::Subscription subscription;
};

DTRAIN_DEFINED Communicator::Communicator(ProcessOwned<End> end) noexcept : end_(std::move(end)) {}
DTRAIN_DEFINED Communicator::Communicator(Communicator&& other) noexcept = default;
DTRAIN_DEFINED Communicator& Communicator::operator=(Communicator&& other) noexcept = default;
DTRAIN_DEFINED Communicator::~Communicator() = default;

DTRAIN_DEFINED Communicator Communicator::open_blocking(const ChannelContext& context, Deadline deadline) {
  const std::size_t ranks = static_cast<std::size_t>(context.members.world_size);
  const std::size_t bytes = ControlBlock::bytes_for(context.members.world_size);
  Links links = Links::open(context, deadline);
  const Shared shared = Sharing(links, 1, (bytes + ranks - 1) / ranks, deadline).run();
  auto end = make_process_owned<End>(context, std::move(links), shared.segment);
  end->prove_one_memory(shared.nonce);
  return Communicator(std::move(end));
}

DTRAIN_DEFINED int Communicator::rank() const noexcept {
  return end_->channel->rank();
}

DTRAIN_DEFINED const rendezvous::Membership& Communicator::members() const noexcept {
  return end_->context.members;
}

DTRAIN_DEFINED int Communicator::size() const noexcept {
  return end_->channel->size();
}

DTRAIN_DEFINED void Communicator::all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
  detail::check_host(input, output);
  check_all_reduce(input, output);
  check_reduced_by_kernels("all_reduce", output);
  const ArenaTable::Place place =
      input.data == output.data ? end_->arenas.find(output.data, output.bytes()) : ArenaTable::Place{};
  Operation operation = end_->next(OperationKind::all_reduce, output, place);
  operation.op = op;
  end_->enqueue(operation, AllReduce{input.data, output.data, place.arena}, stream);
}

DTRAIN_DEFINED void Communicator::broadcast(BufferView buffer, int root, Stream stream) {
  detail::check_host(buffer, buffer);
  check_broadcast(buffer, root, size());
  const ArenaTable::Place place = end_->arenas.find(buffer.data, buffer.bytes());
  Operation operation = end_->next(OperationKind::broadcast, buffer, place);
  operation.root = root;
  end_->enqueue(operation, Broadcast{buffer.data, place.arena}, stream);
}

DTRAIN_DEFINED void Communicator::reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
  detail::check_host(input, output);
  check_reduce_scatter(input, output, rank(), size());
  check_reduced_by_kernels("reduce_scatter", output);
  const ArenaTable::Place place = end_->arenas.find(input.data, input.bytes());
  Operation operation = end_->next(OperationKind::reduce_scatter, output, place);
  operation.op = op;
  end_->enqueue(operation, ReduceScatter{input.data, output.data, place.arena}, stream);
}

DTRAIN_DEFINED void Communicator::all_gather(ConstBufferView input, BufferView output, Stream stream) {
  detail::check_host(input, output);
  check_all_gather(input, output, rank(), size());
  const ArenaTable::Place place = end_->arenas.find(input.data, input.bytes());
  end_->enqueue(end_->next(OperationKind::all_gather, input, place), AllGather{input.data, output.data, place.arena},
                stream);
}

DTRAIN_DEFINED void Communicator::send(ConstBufferView input, int peer, Stream stream) {
  check_message("send", input, peer, rank(), size());
  end_->transfer(OperationKind::send, input, peer, BufferView{}, -1, stream);
}

DTRAIN_DEFINED void Communicator::recv(BufferView output, int peer, Stream stream) {
  check_message("recv", output, peer, rank(), size());
  end_->transfer(OperationKind::recv, ConstBufferView{}, -1, output, peer, stream);
}

DTRAIN_DEFINED void Communicator::send_recv(ConstBufferView input, int to, BufferView output, int from, Stream stream) {
  check_send_recv(input, to, output, from, size());
  end_->transfer(OperationKind::send_recv, input, to, output, from, stream);
}

DTRAIN_DEFINED void Communicator::barrier(Stream stream) {
  end_->enqueue(end_->next(OperationKind::barrier, ConstBufferView{}, {}), Barrier{}, stream);
}

DTRAIN_DEFINED Communicator Communicator::split_blocking(int color, int key, Deadline deadline) {
  end_->check();
  end_->help_others();
  const ChannelContext part = split_context(end_->context, end_->splits + 1, color, key, deadline);
  ++end_->splits;
  return open_blocking(part, deadline);
}

DTRAIN_DEFINED Allocation Communicator::allocate_blocking(std::size_t bytes, Deadline deadline) {
  end_->check();
  const Shared shared = Sharing(end_->links, ++end_->exchanges, bytes, deadline).run();
  end_->check();
  const Arena arena{shared.segment->base(), shared.stride};
  end_->arenas.add(end_->exchanges, shared.segment, arena, arena.part(rank()), bytes);
  return {shared.segment, arena.part(rank()), bytes};
}

DTRAIN_DEFINED void Communicator::abort(const Cause& cause) noexcept {
  end_->channel->abort(cause);
}

DTRAIN_DEFINED std::optional<Cause> Communicator::failure() const {
  return end_->channel->failure();
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
