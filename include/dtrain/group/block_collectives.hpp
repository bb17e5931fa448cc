#pragma once
/// @file
/// Collectives of a process group with a root, or with a block for each pair of ranks.

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/buffers.hpp"
#include "dtrain/group/work.hpp"

namespace DTRAIN_NAMESPACE::group {

/// A list of counts, one for each rank, in elements: a std::vector, std::array or std::span of std::size_t. It is read
/// at the call only.
using Counts = backend::Counts;

/// Base class of Collectives, with the same two forms of each operation.
/// - Blocks lie in the order of the ranks, without gaps. The _v forms take their counts, which may be 0 and whose sum
/// is
///   the length of the buffer. Each call allocates a table of them.
/// - A rank that is not the root gives any buffer, also an empty one, where only the root has one. It is ignored.
/// - In place: except for all_to_all, `input` and `output` may be the same memory in this rank's block. Otherwise they
///   are disjoint.
/// - With SharedMemory, Mpi and Gloo, a reduction is one pass in rank order: equal bits for all lengths and backends.
/// @throws Error (invalid_argument) at the call if counts, lengths, types, the root or addresses do not fit. If ranks
/// give different counts for one block, all fail with a sentence that names both; with NCCL they time out.
template <class Group, class State>
class BlockCollectives {
 public:
  using Communicator = typename State::Communicator;
  using Stream = typename Communicator::Stream;
  using Work = group::Work<State>;

  /// Rank `root`'s `output` gets the reduction of every rank's `input`, the sum by default. With Mpi and Gloo the root
  /// receives every rank's values.
  Work reduce(ReadBuffer input, WriteBuffer output, int root, ReduceOp op,
              Stream stream) const requires backend::CanReduceBlocks<Communicator> {
    const BufferView used = used_if<BufferView>(is_rank(root), output, input);
    live().reduce_blocks(backend::blocks_of_reduce(input, used, root, place()), input, used, op, stream);
    return work(stream);
  }
  void reduce(ReadBuffer input, WriteBuffer output, int root,
              ReduceOp op = ReduceOp::sum) const requires backend::CanReduceBlocks<Communicator> {
    reduce(input, output, root, op, stream()).wait();
  }
  /// The same in place; the values of other ranks than the root stay.
  Work reduce(WriteBuffer values, int root, ReduceOp op,
              Stream stream) const requires backend::CanReduceBlocks<Communicator> {
    return reduce(values, values, root, op, stream);
  }
  void reduce(WriteBuffer values, int root,
              ReduceOp op = ReduceOp::sum) const requires backend::CanReduceBlocks<Communicator> {
    reduce(values, values, root, op);
  }

  /// Block r of rank `root`'s `output` gets rank r's `input`; all blocks have equal lengths.
  Work gather(MovedReadBuffer input, MovedWriteBuffer output, int root,
              Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    const BufferView used = used_if<BufferView>(is_rank(root), output, input);
    return exchange(backend::blocks_of_gather(input, used, {}, root, place()), input, used, stream);
  }
  void gather(MovedReadBuffer input, MovedWriteBuffer output,
              int root) const requires backend::CanExchangeBlocks<Communicator> {
    gather(input, output, root, stream()).wait();
  }

  /// The same with blocks of any lengths. @param counts of each rank's input; ignored on other ranks than the root
  Work gather_v(MovedReadBuffer input, MovedWriteBuffer output, Counts counts, int root,
                Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    const BufferView used = used_if<BufferView>(is_rank(root), output, input);
    return exchange(backend::blocks_of_gather(input, used, counts, root, place()), input, used, stream);
  }
  void gather_v(MovedReadBuffer input, MovedWriteBuffer output, Counts counts,
                int root) const requires backend::CanExchangeBlocks<Communicator> {
    gather_v(input, output, counts, root, stream()).wait();
  }

  /// Rank r's `output` gets block r of rank `root`'s `input`; all blocks have equal lengths.
  Work scatter(MovedReadBuffer input, MovedWriteBuffer output, int root,
               Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    const ConstBufferView used = used_if<ConstBufferView>(is_rank(root), input, output);
    return exchange(backend::blocks_of_scatter(used, {}, output, root, place()), used, output, stream);
  }
  void scatter(MovedReadBuffer input, MovedWriteBuffer output,
               int root) const requires backend::CanExchangeBlocks<Communicator> {
    scatter(input, output, root, stream()).wait();
  }

  /// The same with blocks of any lengths. @param counts of each rank's output; ignored on other ranks than the root
  Work scatter_v(MovedReadBuffer input, Counts counts, MovedWriteBuffer output, int root,
                 Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    const ConstBufferView used = used_if<ConstBufferView>(is_rank(root), input, output);
    return exchange(backend::blocks_of_scatter(used, counts, output, root, place()), used, output, stream);
  }
  void scatter_v(MovedReadBuffer input, Counts counts, MovedWriteBuffer output,
                 int root) const requires backend::CanExchangeBlocks<Communicator> {
    scatter_v(input, counts, output, root, stream()).wait();
  }

  /// Block s of rank r's `output` gets block r of rank s's `input`; all blocks have equal lengths.
  Work all_to_all(MovedReadBuffer input, MovedWriteBuffer output,
                  Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return exchange(backend::blocks_of_all_to_all(input, {}, output, {}, place()), input, output, stream);
  }
  void all_to_all(MovedReadBuffer input,
                  MovedWriteBuffer output) const requires backend::CanExchangeBlocks<Communicator> {
    all_to_all(input, output, stream()).wait();
  }

  /// The same with blocks of any lengths: `send_counts` of the input's, `receive_counts` of the output's.
  Work all_to_all_v(MovedReadBuffer input, Counts send_counts, MovedWriteBuffer output, Counts receive_counts,
                    Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return exchange(backend::blocks_of_all_to_all(input, send_counts, output, receive_counts, place()), input, output,
                    stream);
  }
  void all_to_all_v(MovedReadBuffer input, Counts send_counts, MovedWriteBuffer output,
                    Counts receive_counts) const requires backend::CanExchangeBlocks<Communicator> {
    all_to_all_v(input, send_counts, output, receive_counts, stream()).wait();
  }

  /// As all_gather with blocks of any lengths. @param counts of each rank's input, the same on every rank
  Work all_gather_v(MovedReadBuffer input, MovedWriteBuffer output, Counts counts,
                    Stream stream) const requires backend::CanExchangeBlocks<Communicator> {
    return exchange(backend::blocks_of_all_gather_v(input, output, counts, place()), input, output, stream);
  }
  void all_gather_v(MovedReadBuffer input, MovedWriteBuffer output,
                    Counts counts) const requires backend::CanExchangeBlocks<Communicator> {
    all_gather_v(input, output, counts, stream()).wait();
  }

  /// As reduce_scatter with blocks of any lengths. @param counts of each rank's output, the same on every rank
  Work reduce_scatter_v(ReadBuffer input, WriteBuffer output, Counts counts, ReduceOp op,
                        Stream stream) const requires backend::CanReduceBlocks<Communicator> {
    live().reduce_blocks(backend::blocks_of_reduce_scatter_v(input, output, counts, place()), input, output, op,
                         stream);
    return work(stream);
  }
  void reduce_scatter_v(ReadBuffer input, WriteBuffer output, Counts counts,
                        ReduceOp op = ReduceOp::sum) const requires backend::CanReduceBlocks<Communicator> {
    reduce_scatter_v(input, output, counts, op, stream()).wait();
  }

 private:
  const Group& self() const noexcept { return static_cast<const Group&>(*this); }
  Communicator& live() const { return self().state_->live(); }
  Stream stream() const { return self().stream(); }
  Work work(Stream stream) const { return {self().state_, stream}; }
  backend::RankPlace place() const noexcept { return {self().rank(), self().world_size()}; }
  bool is_rank(int rank) const noexcept { return self().rank() == rank; }

  /// `view`, or an empty one of the type and device of `other`.
  template <class View>
  static View used_if(bool is_used, const View& view, const ConstBufferView& other) noexcept {
    return is_used ? view : View{nullptr, 0, other.dtype, other.device};
  }

  Work exchange(const backend::BlockExchange& blocks, const ConstBufferView& input, const BufferView& output,
                Stream stream) const {
    live().exchange_blocks(blocks, input, output, stream);
    return work(stream);
  }
};

}  // namespace DTRAIN_NAMESPACE::group
