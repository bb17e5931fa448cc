#pragma once
/// @file
/// Collectives of a process group, enqueued on a stream or blocking.

#include <span>
#include <type_traits>

#include "dtrain/backend/check_arguments.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/block_collectives.hpp"
#include "dtrain/group/buffers.hpp"
#include "dtrain/group/device_bounce_buffer.hpp"
#include "dtrain/group/work.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Base class of ProcessGroup. Each operation has two forms:
/// - With a stream: enqueues there and returns a Work, which may be dropped.
/// - Without one: blocks. It runs on the group's own stream, after the work enqueued there, and returns when it is
/// done, at most timeout() after it begins to run.
///
/// An operation exists if the backend's communicator has the ability (see dtrain/backend/communicator.hpp).
/// Buffers: views of any memory that the backend reduces, or typed host memory (std::span, std::vector, std::array or
/// array) of a dtrain::Element. Operations that do not reduce also take any integers of 1, 4 or 8 bytes, and only they
/// take 8-bit floats. With a backend of device memory, all_reduce and broadcast without a stream also take host memory,
/// and copy it both ways.
/// Collective: every rank of the group calls the same operations in the same order, with the same counts, types, roots
/// and reductions. send, recv and send_recv concern only the ranks that they name.
/// Lifetime: buffers outlive enqueued work. Threads: one at a time for each group, and not the control thread, where a
/// coroutine awaits a Work that a thread of the program enqueued.
/// @throws Error (invalid_argument), before anything is enqueued, if sizes, types, ranks or addresses do not fit; the
/// job's first cause.
template <class Group, class State>
class Collectives : public BlockCollectives<Group, State> {
 public:
  using Communicator = typename State::Communicator;
  using Stream = typename Communicator::Stream;

  using Work = group::Work<State>;

  /// `output` gets the reduction of every rank's `input`, the sum by default. The two are the same memory or disjoint.
  Work all_reduce(ReadBuffer input, WriteBuffer output, ReduceOp op, Stream stream) const {
    backend::check_all_reduce(input, output);
    live().all_reduce(input, output, op, stream);
    return work(stream);
  }
  Work all_reduce(ReadBuffer input, WriteBuffer output, Stream stream) const {
    return all_reduce(input, output, ReduceOp::sum, stream);
  }
  Work all_reduce(WriteBuffer values, ReduceOp op, Stream stream) const {
    return all_reduce(values, values, op, stream);
  }
  Work all_reduce(WriteBuffer values, Stream stream) const { return all_reduce(values, values, stream); }
  void all_reduce(ReadBuffer input, WriteBuffer output, ReduceOp op = ReduceOp::sum) const {
    if constexpr (DeviceBounceBuffer<Stream>::is_needed) {
      if (is_on_host(input) && is_on_host(output)) {
        backend::check_all_reduce(input, output);
        self().state_->device_bounce_buffer().copy_through(
            input, output, stream(), [&](BufferView chunk) { live().all_reduce(chunk, chunk, op, stream()); },
            [&] { work(stream()).wait(); });
        return;
      }
    }
    all_reduce(input, output, op, stream()).wait();
  }
  void all_reduce(WriteBuffer values, ReduceOp op = ReduceOp::sum) const { all_reduce(values, values, op); }

  /// all_reduce in place of values that are not gradients, such as weights or an optimizer's state: a topology with a
  /// wire type (FlatOver, Hierarchical) does not round them to 16 bits. With others it is all_reduce.
  Work all_reduce_without_cast(WriteBuffer values, ReduceOp op, Stream stream) const {
    if constexpr (backend::CanReduceWithoutCast<Communicator>) {
      backend::check_all_reduce(values, values);
      live().all_reduce_without_cast(values, values, op, stream);
      return work(stream);
    } else {
      return all_reduce(values, op, stream);
    }
  }
  void all_reduce_without_cast(WriteBuffer values, ReduceOp op = ReduceOp::sum) const {
    if constexpr (backend::CanReduceWithoutCast<Communicator>) {
      all_reduce_without_cast(values, op, stream()).wait();
    } else {
      all_reduce(values, op);
    }
  }

  /// Collective, blocking. Reduces one number: `loss = group.all_reduce(loss, dtrain::ReduceOp::average)`.
  /// @returns the reduction of every rank's `value`
  template <class Number>
  requires(std::is_arithmetic_v<Number> || Element<Number>) [[nodiscard]] Number
      all_reduce(Number value, ReduceOp op = ReduceOp::sum) const {
    static_assert(ReducedElement<Number>,
                  "dtrain: all_reduce(value, op) takes one number of a type that dtrain reduces (the concept "
                  "group::ReducedElement, in dtrain/group/buffers.hpp): convert others, to std::int64_t for example; "
                  "for several give a buffer");
    if constexpr (ReducedElement<Number>) {
      all_reduce(std::span(&value, 1), op);
    }
    return value;
  }

  /// `buffer` gets rank `root`'s content.
  Work broadcast(MovedWriteBuffer buffer, int root, Stream stream) const {
    Communicator& channel = live();
    backend::check_broadcast(buffer, root, channel.size());
    channel.broadcast(buffer, root, stream);
    return work(stream);
  }
  void broadcast(MovedWriteBuffer buffer, int root) const {
    if constexpr (DeviceBounceBuffer<Stream>::is_needed) {
      if (is_on_host(buffer)) {
        backend::check_broadcast(buffer, root, live().size());
        self().state_->device_bounce_buffer().copy_through(
            buffer, buffer, stream(), [&](BufferView chunk) { live().broadcast(chunk, root, stream()); },
            [&] { work(stream()).wait(); });
        return;
      }
    }
    broadcast(buffer, root, stream()).wait();
  }

  /// Rank r's `output` gets block r of the reduction (by default the sum) of every rank's `input`, which has one block
  /// for each rank. `output` is the memory of that block, or disjoint from `input`.
  Work reduce_scatter(ReadBuffer input, WriteBuffer output, ReduceOp op,
                      Stream stream) const requires backend::CanReduceScatter<Communicator> {
    Communicator& channel = live();
    backend::check_reduce_scatter(input, output, channel.rank(), channel.size());
    channel.reduce_scatter(input, output, op, stream);
    return work(stream);
  }
  Work reduce_scatter(ReadBuffer input, WriteBuffer output,
                      Stream stream) const requires backend::CanReduceScatter<Communicator> {
    return reduce_scatter(input, output, ReduceOp::sum, stream);
  }
  void reduce_scatter(ReadBuffer input, WriteBuffer output,
                      ReduceOp op = ReduceOp::sum) const requires backend::CanReduceScatter<Communicator> {
    reduce_scatter(input, output, op, stream()).wait();
  }

  /// Block r of `output` gets rank r's `input`; `output` has one block for each rank. `input` is the memory of
  /// this rank's block, or disjoint from `output`.
  Work all_gather(MovedReadBuffer input, MovedWriteBuffer output,
                  Stream stream) const requires backend::CanAllGather<Communicator> {
    Communicator& channel = live();
    backend::check_all_gather(input, output, channel.rank(), channel.size());
    channel.all_gather(input, output, stream);
    return work(stream);
  }
  void all_gather(MovedReadBuffer input, MovedWriteBuffer output) const requires backend::CanAllGather<Communicator> {
    all_gather(input, output, stream()).wait();
  }

  /// Sends `input` to rank `peer`, which calls recv. It may complete before that recv begins, or only after.
  Work send(MovedReadBuffer input, int peer, Stream stream) const requires backend::CanSendRecv<Communicator> {
    Communicator& channel = live();
    backend::check_message("send", input, peer, channel.rank(), channel.size());
    channel.send(input, peer, stream);
    return work(stream);
  }
  void send(MovedReadBuffer input, int peer) const requires backend::CanSendRecv<Communicator> {
    send(input, peer, stream()).wait();
  }

  /// `output` gets the message that rank `peer` sends: the k-th recv gets the k-th send.
  Work recv(MovedWriteBuffer output, int peer, Stream stream) const requires backend::CanSendRecv<Communicator> {
    Communicator& channel = live();
    backend::check_message("recv", output, peer, channel.rank(), channel.size());
    channel.recv(output, peer, stream);
    return work(stream);
  }
  void recv(MovedWriteBuffer output, int peer) const requires backend::CanSendRecv<Communicator> {
    recv(output, peer, stream()).wait();
  }

  /// Sends and receives at once, so that ranks in a ring need not alternate. A rank may name itself. `input` and
  /// `output` are disjoint.
  Work send_recv(MovedReadBuffer input, int to, MovedWriteBuffer output, int from,
                 Stream stream) const requires backend::CanSendRecv<Communicator> {
    Communicator& channel = live();
    backend::check_send_recv(input, to, output, from, channel.size());
    channel.send_recv(input, to, output, from, stream);
    return work(stream);
  }
  void send_recv(MovedReadBuffer input, int to, MovedWriteBuffer output,
                 int from) const requires backend::CanSendRecv<Communicator> {
    send_recv(input, to, output, from, stream()).wait();
  }

  /// Completes when every rank's stream has reached it. Without a stream, it throws the job's first cause on every rank
  /// alike: call it before writing a checkpoint, for example.
  Work barrier(Stream stream) const {
    live().barrier(stream);
    return work(stream);
  }
  void barrier() const { barrier(stream()).wait(); }

 private:
  static bool is_on_host(const ConstBufferView& view) noexcept { return view.device.kind == DeviceKind::host; }

  const Group& self() const noexcept { return static_cast<const Group&>(*this); }
  Communicator& live() const { return self().state_->live(); }
  Stream stream() const { return self().stream(); }
  Work work(Stream stream) const { return {self().state_, stream}; }
};

}  // namespace DTRAIN_NAMESPACE::group
