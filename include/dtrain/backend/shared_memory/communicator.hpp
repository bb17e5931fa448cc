#pragma once
/// @file
/// The communicator of ranks that share one host's memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/arguments.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/shared_memory/all_gather.hpp"
#include "dtrain/backend/shared_memory/all_reduce.hpp"
#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/broadcast.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/reduce_scatter.hpp"
#include "dtrain/backend/shared_memory/sharing.hpp"
#include "dtrain/backend/shared_memory/transfer.hpp"
#include "dtrain/backend/split.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

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

/// Owns one rank's end of a channel. Reductions are of every DType and ReduceOp, in rank order (see
/// kernels::Reduction): the same bits whatever the memory, the path, the progress mode and the timing.
/// Work runs in the thread that waits for the stream, or in its helper; a rank whose peers have not come spins, then
/// sleeps. Threads: one at a time, abort() and failure() from any. Destruction skips work that has not run.
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = shared_memory::Allocation;

  /// Collective, blocking. For SharedMemory::open_blocking and split_blocking. @throws Error (unsupported, limit,
  /// out_of_memory, timeout, closed), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    const std::size_t ranks = static_cast<std::size_t>(context.members.world_size);
    const std::size_t bytes = ControlBlock::bytes_for(context.members.world_size);
    Links links = Links::open(context, deadline);
    const Shared shared = Sharing(links, 1, (bytes + ranks - 1) / ranks, deadline).run();
    Communicator communicator(context, std::move(links), shared.segment);
    communicator.prove_one_memory(shared.nonce);
    return communicator;
  }

  int rank() const noexcept { return channel().rank(); }
  int size() const noexcept { return channel().size(); }

  /// See CanAllReduce. In place on an allocation nothing is copied. @throws Error (unsupported, invalid_argument) at
  /// the call, as do the others.
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    check_host(input, output);
    check_all_reduce(input, output);
    const ArenaTable::Place place =
        input.data == output.data ? end_->arenas.find(output.data, output.bytes()) : ArenaTable::Place{};
    Operation operation = next(OperationKind::all_reduce, output, place);
    operation.op = op;
    enqueue(operation, AllReduce{input.data, output.data, place.arena}, stream);
  }

  /// See CanBroadcast.
  void broadcast(BufferView buffer, int root, Stream stream) {
    check_host(buffer, buffer);
    check_broadcast(buffer, root, size());
    const ArenaTable::Place place = end_->arenas.find(buffer.data, buffer.bytes());
    Operation operation = next(OperationKind::broadcast, buffer, place);
    operation.root = root;
    enqueue(operation, Broadcast{buffer.data, place.arena}, stream);
  }

  /// See CanReduceScatter. `output` may be this rank's block of `input`; where every rank's input lies in one
  /// allocation nothing is copied.
  void reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    check_host(input, output);
    check_reduce_scatter(input, output, rank(), size());
    const ArenaTable::Place place = end_->arenas.find(input.data, input.bytes());
    Operation operation = next(OperationKind::reduce_scatter, output, place);
    operation.op = op;
    enqueue(operation, ReduceScatter{input.data, output.data, place.arena}, stream);
  }

  /// See CanAllGather. `input` may be this rank's block of `output`; where every rank's input lies in one allocation it
  /// is copied once for each reader.
  void all_gather(ConstBufferView input, BufferView output, Stream stream) {
    check_host(input, output);
    check_all_gather(input, output, rank(), size());
    const ArenaTable::Place place = end_->arenas.find(input.data, input.bytes());
    enqueue(next(OperationKind::all_gather, input, place), AllGather{input.data, output.data, place.arena}, stream);
  }

  /// See CanSendRecv. A message of up to 128 KiB does not wait for its receiver while no other is under way.
  void send(ConstBufferView input, int peer, Stream stream) {
    check_message("send", input, peer, rank(), size());
    transfer(OperationKind::send, input, peer, BufferView{}, -1, stream);
  }
  void recv(BufferView output, int peer, Stream stream) {
    check_message("recv", output, peer, rank(), size());
    transfer(OperationKind::recv, ConstBufferView{}, -1, output, peer, stream);
  }
  void send_recv(ConstBufferView input, int to, BufferView output, int from, Stream stream) {
    check_send_recv(input, to, output, from, size());
    transfer(OperationKind::send_recv, input, to, output, from, stream);
  }

  /// See CanBarrier.
  void barrier(Stream stream) { enqueue(next(OperationKind::barrier, ConstBufferView{}, {}), Barrier{}, stream); }

  /// See CanSplit. @throws Error (invalid_argument) at the call for a negative color; as open_blocking
  Communicator split_blocking(int color, int key, Deadline deadline) {
    end_->check();
    end_->help_others();
    const ChannelContext part = split_context(end_->context, end_->splits + 1, color, key, deadline);
    ++end_->splits;
    return open_blocking(part, deadline);
  }

  /// See CanAllocate. Parts are aligned to pages, from 2 MiB on to huge pages; a rank's pages are on its own NUMA node.
  /// If it fails it fails on every rank, and the channel serves on.
  /// @throws Error (disagreement, out_of_memory, timeout), JobFailed
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    end_->check();
    const Shared shared = Sharing(end_->links, ++end_->exchanges, bytes, deadline).run();
    end_->check();
    const Arena arena{shared.segment->base(), shared.stride};
    end_->arenas.add(end_->exchanges, shared.segment, arena, arena.part(rank()), bytes);
    return {shared.segment, arena.part(rank()), bytes};
  }

  /// See CanAbort. Peers' communicators on this channel fail with the same cause.
  void abort(const Cause& cause) noexcept { channel().abort(cause); }
  std::optional<Cause> failure() const { return channel().failure(); }

 private:
  /// Takes over a channel whose control block every rank has mapped.
  Communicator(const ChannelContext& context, Links links, std::shared_ptr<Segment> control)
      : end_(std::make_unique<End>(context, std::move(links), std::move(control))) {}

  /// Collective, blocking: every rank finds what the others wrote into the control block. @throws Error (unsupported,
  /// timeout), JobFailed
  void prove_one_memory(std::uint64_t nonce) {
    bool same = true;
    const auto work = [&]() noexcept {
      channel().control().slot(rank()).nonce = nonce + static_cast<std::uint64_t>(rank());
      if (channel().meet_and_compare()) {
        for (int peer = 0; peer < size(); ++peer) {
          same = same && channel().control().slot(peer).nonce == nonce + static_cast<std::uint64_t>(peer);
        }
      }
    };
    channel().run(++end_->enqueued, next(OperationKind::barrier, ConstBufferView{}, {}), work);
    ++end_->collectives;
    end_->check();
    if (!same) {
      throw Error(Errc::unsupported, "the ranks of channel '" + channel().name() +
                                         "' do not see the same memory; use backend::Mpi, Gloo or Nccl between hosts");
    }
  }

  /// What stays at its address when the communicator moves.
  struct End {
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

  Channel& channel() const noexcept { return *end_->channel; }

  /// The next collective. Nothing is counted before it is enqueued.
  Operation next(OperationKind kind, const ConstBufferView& buffer, const ArenaTable::Place& place) const noexcept {
    Operation operation;
    operation.sequence = end_->collectives + 1;
    operation.kind = kind;
    operation.count = buffer.count;
    operation.dtype = buffer.dtype;
    operation.allocation = place.allocation;
    operation.offset = place.offset;
    return operation;
  }

  void transfer(OperationKind kind, ConstBufferView input, int to, BufferView output, int from, Stream stream) {
    check_host(input, output);
    const bool sends = to >= 0;
    Operation operation;
    operation.kind = kind;
    operation.count = sends ? input.count : output.count;
    operation.dtype = sends ? input.dtype : output.dtype;
    operation.root = sends ? to : from;
    enqueue(operation,
            Transfer{input.data, output.data, input.count, output.count, input.dtype, output.dtype, to, from}, stream);
  }

  static void check_host(const ConstBufferView& input, const ConstBufferView& output) {
    check_host_memory("backend::SharedMemory", input, output);
  }

  template <class Algorithm>
  void enqueue(const Operation& operation, const Algorithm& algorithm, Stream stream) {
    channel().retain();
    try {
      stream.enqueue(ChannelWork<Algorithm>{&channel(), end_->enqueued + 1, operation, algorithm});
    } catch (...) {
      channel().release();
      throw;
    }
    ++end_->enqueued;
    end_->collectives += operation.sequence != 0 ? 1 : 0;
  }

  std::unique_ptr<End> end_;
};

static_assert(backend::Communicator<Communicator>);

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
