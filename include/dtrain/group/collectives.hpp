#pragma once
/// @file
/// Collectives: calls of a process group, blocking or enqueued on a stream, which all ranks make in one order.

#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/collectives/buffers.hpp"
#include "dtrain/group/collectives/counts.hpp"
#include "dtrain/group/collectives/device_bounce_buffer.hpp"
#include "dtrain/group/collectives/own_reductions.hpp"
#include "dtrain/group/collectives/row_sum.hpp"
#include "dtrain/group/collectives/value_collectives.hpp"
#include "dtrain/group/collectives/work.hpp"

namespace DTRAIN_NAMESPACE::group {

/// The collectives of a ProcessGroup, whose base class it is. Each operation has two forms:
/// - With a stream: enqueues there and returns a Work, which may be dropped.
/// - Without one: blocks. It runs on the group's own stream, after the work enqueued there, and returns when it is
/// done, at most timeout() after it begins to run.
///
/// An operation exists if the backend's communicator has the ability (see dtrain/backend/communicator.hpp).
/// Buffers: views of any memory that the backend reduces, or typed host memory (std::span, std::vector, std::array or
/// array) of ReducedValues. Operations that do not reduce take all MovedValues, structs included; messages count a
/// struct's bytes. With a backend of device memory, all_reduce, broadcast and all_gather without a stream also take
/// host memory, and copy it both ways. Collective: every rank of the group calls the same operations in the same order,
/// with the same counts, types, roots and reductions. send, recv and send_recv concern only the ranks that they name.
/// Lifetime: buffers outlive enqueued work; a temporary that owns an input's memory does not compile with a stream.
/// Threads: one at a time for each group, and not the control thread, where a coroutine awaits a Work that a thread of
/// the program enqueued.
/// @throws Error (invalid_argument), before anything is enqueued, if sizes, types, ranks or addresses do not fit;
/// (unsupported), also before, for a reduction that a library's elements do not allow (require_reduction); the job's
/// first cause.
/// @ingroup collectives
template <class Group, class State>
class Collectives : public ValueCollectives<Group, State>,
                    public OwnReductions<Group, State>,
                    public RowCollectives<Group, State> {
  using Values = ValueCollectives<Group, State>;
  using Own = OwnReductions<Group, State>;

 public:
  using Own::all_reduce, Own::reduce, Own::reduce_scatter_v;
  using Values::all_gather, Values::all_reduce, Values::broadcast, Values::recv, Values::reduce, Values::send;

  using Communicator = typename State::Communicator;
  using Stream = typename Communicator::Stream;
  using Work = group::Work<State>;

  /// `output` gets the reduction of every rank's `input`, the sum by default. The two are the same memory or disjoint.
  Work all_reduce(EnqueuedInput<ReadBuffer> input, WriteBuffer output, ReduceOp op, Stream stream) const {
    return enqueue(all_reduce_of(input, output, op), stream);
  }
  Work all_reduce(EnqueuedInput<ReadBuffer> input, WriteBuffer output, Stream stream) const {
    return all_reduce(input, output, ReduceOp::sum, stream);
  }
  Work all_reduce(WriteBuffer values, ReduceOp op, Stream stream) const {
    return all_reduce(values, values, op, stream);
  }
  Work all_reduce(WriteBuffer values, Stream stream) const { return all_reduce(values, values, stream); }
  void all_reduce(ReadBuffer input, WriteBuffer output, ReduceOp op = ReduceOp::sum) const {
    if constexpr (DeviceBounceBuffer<Stream>::is_needed) {
      if (is_on_host(input) && is_on_host(output)) {
        all_reduce_of(input, output, op).check(place());
        self().state_->device_bounce_buffer().copy_through(
            input, output, stream(),
            [&](BufferView chunk) {
              live().enqueue(backend::AllReduce{chunk, chunk, op}, stream());
            },
            [&] { wait(); });
        return;
      }
    }
    run(all_reduce_of(input, output, op));
  }
  void all_reduce(WriteBuffer values, ReduceOp op = ReduceOp::sum) const { all_reduce(values, values, op); }

  /// all_reduce in place of values that are not gradients (weights, an optimizer's state): Hierarchical with a wire
  /// type does not round them to 16 bits. With other topologies it is all_reduce.
  Work all_reduce_without_cast(WriteBuffer values, ReduceOp op, Stream stream) const {
    if constexpr (backend::CanReduceWithoutCast<Communicator>) {
      require_meaning(values, values, op);
      return enqueue(backend::AllReduceWithoutCast{{values, values, op}}, stream);
    } else {
      return all_reduce(values, op, stream);
    }
  }
  void all_reduce_without_cast(WriteBuffer values, ReduceOp op = ReduceOp::sum) const {
    if constexpr (backend::CanReduceWithoutCast<Communicator>) {
      require_meaning(values, values, op);
      run(backend::AllReduceWithoutCast{{values, values, op}});
    } else {
      all_reduce(values, op);
    }
  }

  /// `buffer` gets rank `root`'s content.
  Work broadcast(MovedWriteBuffer buffer, int root, Stream stream) const {
    return enqueue(backend::Broadcast{buffer, root}, stream);
  }
  void broadcast(MovedWriteBuffer buffer, int root) const {
    if constexpr (DeviceBounceBuffer<Stream>::is_needed) {
      if (is_on_host(buffer)) {
        backend::Broadcast{buffer, root}.check(place());
        self().state_->device_bounce_buffer().copy_through(
            buffer, buffer, stream(),
            [&](BufferView chunk) {
              live().enqueue(backend::Broadcast{chunk, root}, stream());
            },
            [&] { wait(); });
        return;
      }
    }
    run(backend::Broadcast{buffer, root});
  }

  /// Rank r's `output` gets block r of the reduction (by default the sum) of every rank's `input`, which has one block
  /// for each rank. `output` is the memory of that block, or disjoint from `input`.
  Work reduce_scatter(EnqueuedInput<ReadBuffer> input, WriteBuffer output, ReduceOp op,
                      Stream stream) const requires backend::CanReduceScatter<Communicator> {
    return enqueue(reduce_scatter_of(input, output, op), stream);
  }
  Work reduce_scatter(EnqueuedInput<ReadBuffer> input, WriteBuffer output,
                      Stream stream) const requires backend::CanReduceScatter<Communicator> {
    return reduce_scatter(input, output, ReduceOp::sum, stream);
  }
  void reduce_scatter(ReadBuffer input, WriteBuffer output,
                      ReduceOp op = ReduceOp::sum) const requires backend::CanReduceScatter<Communicator> {
    run(reduce_scatter_of(input, output, op));
  }

  /// Block r of `output` gets rank r's `input`; `output` has one block for each rank. `input` is the memory of
  /// this rank's block, or disjoint from `output`.
  Work all_gather(EnqueuedInput<MovedReadBuffer> input, MovedWriteBuffer output,
                  Stream stream) const requires backend::CanAllGather<Communicator> {
    return enqueue(backend::AllGather{input, output}, stream);
  }
  void all_gather(MovedReadBuffer input, MovedWriteBuffer output) const requires backend::CanAllGather<Communicator> {
    const backend::AllGather gather{input, output};
    if constexpr (DeviceBounceBuffer<Stream>::is_needed) {
      if (is_on_host(input) && is_on_host(output)) {
        gather.check(place());
        self().state_->device_bounce_buffer().gather_through(
            input, output, static_cast<std::size_t>(self().rank()), static_cast<std::size_t>(self().world_size()),
            stream(),
            [&](ConstBufferView mine, BufferView all) {
              live().enqueue(backend::AllGather{mine, all}, stream());
            },
            [&] { wait(); });
        return;
      }
    }
    run(gather);
  }

  /// Sends `input` to rank `peer`, which calls recv. The send may complete before that recv begins, or only after.
  Work send(EnqueuedInput<MovedReadBuffer> input, int peer,
            Stream stream) const requires backend::CanSendRecv<Communicator> {
    return enqueue(backend::Send{input, peer}, stream);
  }
  void send(MovedReadBuffer input, int peer) const requires backend::CanSendRecv<Communicator> {
    run(backend::Send{input, peer});
  }

  /// `output` gets the message that rank `peer` sends: the k-th recv gets the k-th send.
  Work recv(MovedWriteBuffer output, int peer, Stream stream) const requires backend::CanSendRecv<Communicator> {
    return enqueue(backend::Recv{output, peer}, stream);
  }
  void recv(MovedWriteBuffer output, int peer) const requires backend::CanSendRecv<Communicator> {
    run(backend::Recv{output, peer});
  }

  /// Sends and receives at once, so that ranks in a ring need not alternate. A rank may name itself. `input` and
  /// `output` are disjoint.
  Work send_recv(EnqueuedInput<MovedReadBuffer> input, int to, MovedWriteBuffer output, int from,
                 Stream stream) const requires backend::CanSendRecv<Communicator> {
    return enqueue(backend::SendRecv{input, to, output, from}, stream);
  }
  void send_recv(MovedReadBuffer input, int to, MovedWriteBuffer output,
                 int from) const requires backend::CanSendRecv<Communicator> {
    run(backend::SendRecv{input, to, output, from});
  }

  /// Completes when every rank's stream has reached it. Without a stream, the barrier throws the job's first cause on
  /// every rank alike: call it before writing a checkpoint, for example.
  Work barrier(Stream stream) const { return enqueue(backend::Barrier{}, stream); }
  void barrier() const { run(backend::Barrier{}); }

  /// @name Collectives with a root or with a block for each pair of ranks
  /// - Blocks lie in the order of the ranks, without gaps. The _v forms take their counts. A count may be 0, and their
  ///   sum is the length of the buffer. Each call allocates a table of blocks.
  /// - Where only the root has a buffer, other ranks give any buffer, also an empty one, which is ignored.
  /// - In place: except for all_to_all, `input` and `output` may be the same memory in this rank's block.
  ///   Otherwise they are disjoint.
  /// - With SharedMemory, Mpi and Gloo, a reduction is one pass in rank order: equal bits for all lengths and backends.
  /// @throws Error (invalid_argument) at the call if counts, lengths, types, the root or addresses do not fit. If ranks
  /// give different counts for one block, all fail with a sentence that names both; with NCCL they time out.
  /// @{

  /// Rank `root`'s `output` gets the reduction of every rank's `input`, the sum by default. With Mpi and Gloo the root
  /// receives every rank's values.
  Work reduce(EnqueuedInput<ReadBuffer> input, WriteBuffer output, int root, ReduceOp op,
              Stream stream) const requires backend::CanReduceBlocks<Communicator> {
    return enqueue(reduce_of(input, output, root, op), stream);
  }
  void reduce(ReadBuffer input, WriteBuffer output, int root,
              ReduceOp op = ReduceOp::sum) const requires backend::CanReduceBlocks<Communicator> {
    run(reduce_of(input, output, root, op));
  }
  /// reduce() in place; the values of other ranks than the root stay.
  Work reduce(WriteBuffer values, int root, ReduceOp op,
              Stream stream) const requires backend::CanReduceBlocks<Communicator> {
    return reduce(values, values, root, op, stream);
  }
  void reduce(WriteBuffer values, int root,
              ReduceOp op = ReduceOp::sum) const requires backend::CanReduceBlocks<Communicator> {
    reduce(values, values, root, op);
  }

  /// Block r of rank `root`'s `output` gets rank r's `input`; all blocks have equal lengths.
  Work gather(EnqueuedInput<MovedReadBuffer> input, MovedWriteBuffer output, int root,
              Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return enqueue(gather_of(input, output, {}, root), stream);
  }
  void gather(MovedReadBuffer input, MovedWriteBuffer output,
              int root) const requires backend::CanExchangeBlocks<Communicator> {
    run(gather_of(input, output, {}, root));
  }

  /// The same with blocks of any lengths. @param counts of each rank's input; ignored on other ranks than the root
  Work gather_v(EnqueuedInput<MovedReadBuffer> input, MovedWriteBuffer output, Counts counts, int root,
                Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return enqueue(gather_of(input, output, at_root(root, counts, output.unit), root), stream);
  }
  void gather_v(MovedReadBuffer input, MovedWriteBuffer output, Counts counts,
                int root) const requires backend::CanExchangeBlocks<Communicator> {
    run(gather_of(input, output, at_root(root, counts, output.unit), root));
  }

  /// Rank r's `output` gets block r of rank `root`'s `input`; all blocks have equal lengths.
  Work scatter(EnqueuedInput<MovedReadBuffer> input, MovedWriteBuffer output, int root,
               Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return enqueue(scatter_of(input, {}, output, root), stream);
  }
  void scatter(MovedReadBuffer input, MovedWriteBuffer output,
               int root) const requires backend::CanExchangeBlocks<Communicator> {
    run(scatter_of(input, {}, output, root));
  }

  /// The same with blocks of any lengths. @param counts of each rank's output; ignored on other ranks than the root
  Work scatter_v(EnqueuedInput<MovedReadBuffer> input, Counts counts, MovedWriteBuffer output, int root,
                 Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return enqueue(scatter_of(input, at_root(root, counts, input.unit), output, root), stream);
  }
  void scatter_v(MovedReadBuffer input, Counts counts, MovedWriteBuffer output,
                 int root) const requires backend::CanExchangeBlocks<Communicator> {
    run(scatter_of(input, at_root(root, counts, input.unit), output, root));
  }

  /// Block s of rank r's `output` gets block r of rank s's `input`; all blocks have equal lengths.
  Work all_to_all(EnqueuedInput<MovedReadBuffer> input, MovedWriteBuffer output,
                  Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return enqueue(all_to_all_of(input, {}, output, {}), stream);
  }
  void all_to_all(MovedReadBuffer input,
                  MovedWriteBuffer output) const requires backend::CanExchangeBlocks<Communicator> {
    run(all_to_all_of(input, {}, output, {}));
  }

  /// The same with blocks of any lengths: `send_counts` of the input's, `receive_counts` of the output's.
  Work all_to_all_v(EnqueuedInput<MovedReadBuffer> input, Counts send_counts, MovedWriteBuffer output,
                    Counts receive_counts, Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return enqueue(
        all_to_all_of(input, send_counts.in_units_of(input.unit), output, receive_counts.in_units_of(output.unit)),
        stream);
  }
  void all_to_all_v(MovedReadBuffer input, Counts send_counts, MovedWriteBuffer output,
                    Counts receive_counts) const requires backend::CanExchangeBlocks<Communicator> {
    run(all_to_all_of(input, send_counts.in_units_of(input.unit), output, receive_counts.in_units_of(output.unit)));
  }

  /// As all_gather with blocks of any lengths. @param counts of each rank's input, the same on every rank
  Work all_gather_v(EnqueuedInput<MovedReadBuffer> input, MovedWriteBuffer output, Counts counts,
                    Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return enqueue(all_gather_of(input, output, counts.in_units_of(output.unit)), stream);
  }
  void all_gather_v(MovedReadBuffer input, MovedWriteBuffer output,
                    Counts counts) const requires backend::CanExchangeBlocks<Communicator> {
    run(all_gather_of(input, output, counts.in_units_of(output.unit)));
  }

  /// As reduce_scatter with blocks of any lengths. @param counts of each rank's output, the same on every rank
  Work reduce_scatter_v(EnqueuedInput<ReadBuffer> input, WriteBuffer output, Counts counts, ReduceOp op,
                        Stream stream) const requires backend::CanReduceBlocks<Communicator> {
    return enqueue(reduce_scatter_of(input, output, counts.in_units_of(output.unit), op), stream);
  }
  void reduce_scatter_v(ReadBuffer input, WriteBuffer output, Counts counts,
                        ReduceOp op = ReduceOp::sum) const requires backend::CanReduceBlocks<Communicator> {
    run(reduce_scatter_of(input, output, counts.in_units_of(output.unit), op));
  }
  /// @}

 private:
  const Group& self() const noexcept { return static_cast<const Group&>(*this); }
  Communicator& live() const { return self().state_->live(); }
  Stream stream() const { return self().stream(); }
  backend::RankPlace place() const noexcept { return {self().rank(), self().world_size()}; }
  bool is_rank(int rank) const noexcept { return self().rank() == rank; }
  static bool is_on_host(const ConstBufferView& view) noexcept { return view.device.kind == DeviceKind::host; }

  static void require_meaning(const ReadBuffer& input, const WriteBuffer& output, ReduceOp op) {
    require_reduction(input.meaning, op);
    require_reduction(output.meaning, op);
  }

  /// Enqueues the operation on the program's stream.
  template <class Operation>
  Work enqueue(const Operation& operation, Stream stream) const {
    live().enqueue(operation, stream);
    self().state_->attend(stream);
    return {self().state_, stream};
  }

  /// Blocking: runs the operation on the group's own stream.
  template <class Operation>
  void run(const Operation& operation) const {
    live().enqueue(operation, stream());
    wait();
  }
  /// Blocking: until the work of the group's own stream has ended.
  void wait() const { Work(self().state_, stream()).wait(); }

  /// @name The operations, with their checks
  /// @{
  /// An operation refers to its blocks: these have both.
  struct OwnedExchange {
    backend::BlockExchange blocks;
    ConstBufferView input;
    BufferView output;
    backend::ExchangeBlocks operation() const noexcept { return {blocks, input, output}; }
  };
  struct OwnedReduction {
    backend::BlockExchange blocks;
    ConstBufferView input;
    BufferView output;
    ReduceOp op;
    backend::ReduceBlocks operation() const noexcept { return {blocks, input, output, op}; }
  };
  Work enqueue(const OwnedExchange& owned, Stream stream) const { return enqueue(owned.operation(), stream); }
  Work enqueue(const OwnedReduction& owned, Stream stream) const { return enqueue(owned.operation(), stream); }
  void run(const OwnedExchange& owned) const { run(owned.operation()); }
  void run(const OwnedReduction& owned) const { run(owned.operation()); }
  static auto all_reduce_of(const ReadBuffer& input, const WriteBuffer& output, ReduceOp op) {
    require_meaning(input, output, op);
    return backend::AllReduce{input, output, op};
  }
  static auto reduce_scatter_of(const ReadBuffer& input, const WriteBuffer& output, ReduceOp op) {
    require_meaning(input, output, op);
    return backend::ReduceScatter{input, output, op};
  }
  OwnedReduction reduce_scatter_of(const ReadBuffer& input, const WriteBuffer& output, backend::Counts counts,
                                   ReduceOp op) const {
    require_meaning(input, output, op);
    require_equal_units(input.unit, output.unit);
    return {backend::blocks_of_reduce_scatter_v(input, output, counts, place()), input, output, op};
  }
  OwnedReduction reduce_of(const ReadBuffer& input, const WriteBuffer& output, int root, ReduceOp op) const {
    require_meaning(input, output, op);
    const BufferView used = used_if<BufferView>(is_rank(root), output, input);
    return {backend::blocks_of_reduce(input, used, root, place()), input, used, op};
  }
  OwnedExchange gather_of(const ReadBuffer& input, const WriteBuffer& output,
                          const std::optional<backend::Counts>& counts, int root) const {
    if (counts && is_rank(root)) require_equal_units(input.unit, output.unit);
    const BufferView used = used_if<BufferView>(is_rank(root), output, input);
    return {backend::blocks_of_gather(input, used, counts, root, place()), input, used};
  }
  OwnedExchange scatter_of(const ReadBuffer& input, const std::optional<backend::Counts>& counts,
                           const WriteBuffer& output, int root) const {
    if (counts && is_rank(root)) require_equal_units(input.unit, output.unit);
    const ConstBufferView used = used_if<ConstBufferView>(is_rank(root), input, output);
    return {backend::blocks_of_scatter(used, counts, output, root, place()), used, output};
  }
  OwnedExchange all_to_all_of(const ReadBuffer& input, const std::optional<backend::Counts>& send_counts,
                              const WriteBuffer& output, const std::optional<backend::Counts>& receive_counts) const {
    if (send_counts) require_equal_units(input.unit, output.unit);
    return {backend::blocks_of_all_to_all(input, send_counts, output, receive_counts, place()), input, output};
  }
  OwnedExchange all_gather_of(const ReadBuffer& input, const WriteBuffer& output, backend::Counts counts) const {
    require_equal_units(input.unit, output.unit);
    return {backend::blocks_of_all_gather_v(input, output, counts, place()), input, output};
  }
  /// @}

  /// The root's counts; those of other ranks are ignored.
  backend::Counts at_root(int root, Counts& counts, std::uint32_t unit) const {
    return is_rank(root) ? counts.in_units_of(unit) : backend::Counts();
  }

  /// `view`, or an empty one of the type and device of `other`.
  template <class View>
  static View used_if(bool is_used, const View& view, const ConstBufferView& other) noexcept {
    return is_used ? view : View{nullptr, 0, other.dtype, other.device};
  }
};

}  // namespace DTRAIN_NAMESPACE::group
