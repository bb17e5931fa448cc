#pragma once
/// @file
/// The communicator of ranks that share one host's memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/shared_memory/all_reduce.hpp"
#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/broadcast.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/kernels.hpp"
#include "dtrain/backend/shared_memory/sharing.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// An enqueued operation: holds the channel until it has run or was dropped.
template <class Algorithm>
struct ChannelWork {
  Channel* channel;
  Operation operation;
  Algorithm algorithm;

  void operator()() noexcept {
    channel->run(operation, [this]() noexcept { algorithm(*channel, operation); });
    channel->release();
  }
  void drop() noexcept { channel->release(); }
};

/// Owns one rank's end of a channel. Reductions are of f32 and f64, every ReduceOp, summed in rank order: the same bits
/// whatever the memory, the path, the progress mode and the timing. Broadcasts are of every element type.
/// Work runs in the thread that waits for the stream, or in its helper; a rank whose peers have not come spins, then
/// sleeps. Threads: one at a time, abort() and failure() from any. Destruction skips work that has not run.
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = shared_memory::Allocation;

  /// Takes over a channel whose control block every rank has mapped. For SharedMemory::open_blocking.
  Communicator(const ChannelContext& context, Links links, std::shared_ptr<Segment> control)
      : end_(std::make_unique<End>(context, std::move(links), std::move(control))) {}

  int rank() const noexcept { return channel().rank(); }
  int size() const noexcept { return channel().size(); }

  /// See CanAllReduce. @throws Error (unsupported, invalid_argument) at the call.
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    check_host(input.device);
    check_host(output.device);
    check_buffers(input, output);
    const Kernels kernels = kernels_for(input.dtype, op);
    if (kernels.combine == nullptr) {
      throw Error(Errc::unsupported,
                  std::string("backend::SharedMemory reduces f32 and f64 by sum, average, min, max and "
                              "product, not ") +
                      name(input.dtype) + " by " + name(op));
    }
    const ArenaTable::Place place =
        input.data == output.data ? end_->arenas.find(output.data, output.bytes()) : ArenaTable::Place{};
    Operation operation = next(OperationKind::all_reduce, output, place);
    operation.op = op;
    enqueue(operation, AllReduce{input.data, output.data, place.arena, kernels}, stream);
  }

  /// See CanBroadcast. @throws Error (invalid_argument) at the call.
  void broadcast(BufferView buffer, int root, Stream stream) {
    check_host(buffer.device);
    check_buffers(buffer, buffer);
    if (root < 0 || root >= size()) {
      throw Error(Errc::invalid_argument, "broadcast from rank " + std::to_string(root) + " on a channel of " +
                                              std::to_string(size()) + " ranks; ranks begin at 0");
    }
    const ArenaTable::Place place = end_->arenas.find(buffer.data, buffer.bytes());
    Operation operation = next(OperationKind::broadcast, buffer, place);
    operation.root = root;
    enqueue(operation, Broadcast{buffer.data, place.arena}, stream);
  }

  /// See CanBarrier.
  void barrier(Stream stream) { enqueue(next(OperationKind::barrier, BufferView{}, {}), Barrier{}, stream); }

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
    channel().run(next(OperationKind::barrier, BufferView{}, {}), work);
    ++end_->enqueued;
    end_->check();
    if (!same) {
      throw Error(Errc::unsupported, "the ranks of channel '" + channel().name() +
                                         "' do not see the same memory; use backend::Mpi, Gloo or Nccl between hosts");
    }
  }

 private:
  /// What stays at its address when the communicator moves.
  struct End {
    End(const ChannelContext& context, Links to, std::shared_ptr<Segment> control)
        : links(std::move(to)), channel(new Channel(context, std::move(control))) {
      links.set_check([this] { check(); });
      subscription = context.failure->subscribe([this](const Cause& cause) { channel->abort(cause); });
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;
    ~End() {
      subscription.reset();
      channel->close(enqueued);
      channel->release();
    }

    /// @throws the job's first cause, or this channel's.
    void check() const {
      channel->latch()->throw_if_failed(channel->rank());
      if (const std::optional<Cause> cause = channel->failure()) {
        throw_cause(*cause);
      }
    }

    Links links;
    Channel* channel;
    ArenaTable arenas;
    std::uint64_t enqueued = 0;
    std::uint64_t exchanges = 1;  ///< the first was the control block's
    FailureLatch::Subscription subscription;
  };

  Channel& channel() const noexcept { return *end_->channel; }

  Operation next(OperationKind kind, const BufferView& buffer, const ArenaTable::Place& place) const noexcept {
    Operation operation;
    operation.sequence = end_->enqueued + 1;
    operation.kind = kind;
    operation.count = buffer.count;
    operation.dtype = buffer.dtype;
    operation.allocation = place.allocation;
    operation.offset = place.offset;
    return operation;
  }

  template <class Algorithm>
  void enqueue(const Operation& operation, const Algorithm& algorithm, Stream stream) {
    channel().retain();
    try {
      stream.enqueue(ChannelWork<Algorithm>{&channel(), operation, algorithm});
    } catch (...) {
      channel().release();
      throw;
    }
    ++end_->enqueued;
  }

  static void check_host(Device device) {
    if (device.kind != DeviceKind::host) {
      throw Error(Errc::unsupported, "backend::SharedMemory takes host memory, not memory of " + to_string(device) +
                                         "; use backend::Nccl for it");
    }
  }

  static void check_buffers(ConstBufferView input, BufferView output) {
    if (input.count != output.count || input.dtype != output.dtype) {
      throw Error(Errc::invalid_argument, "an all_reduce of " + std::to_string(input.count) + " " + name(input.dtype) +
                                              " into " + std::to_string(output.count) + " " + name(output.dtype) +
                                              "; both buffers have the same length and type");
    }
    if (input.count != 0 && (input.data == nullptr || output.data == nullptr)) {
      throw Error(Errc::invalid_argument,
                  "a collective of " + std::to_string(input.count) + " elements was given a null address");
    }
    const std::less<const std::byte*> before;
    if (input.data != output.data && before(input.data, output.data + output.bytes()) &&
        before(output.data, input.data + input.bytes())) {
      throw Error(Errc::invalid_argument,
                  "the input and output of an all_reduce overlap; give the same address for both, or disjoint memory");
    }
  }

  std::unique_ptr<End> end_;
};

static_assert(backend::Communicator<Communicator>);

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
