#pragma once
/// @file
/// OperationContext: the endpoint, scratch memory and operation of one call, which Channel of this folder and
/// SharedMemory's all_reduce give to an algorithm; Tuning: its thresholds and chunk sizes, which each transport states;
/// SelectedAllReduce: a topology's algorithm for all_reduce, from BackendWithAlgorithm (topology/).

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/memory.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A disagreement whose cause may be an exception on the peer; the peer then reports that exception to the job.
class PeerHasLeft : public Error {
 public:
  explicit PeerHasLeft(std::string sentence) : Error(Errc::disagreement, std::move(sentence)) {}
};

/// Thresholds that select algorithms, and chunk sizes. Equal on every rank.
struct Tuning {
  std::size_t small_bytes = 8192;        ///< most payload bytes in an operation's first message to a peer
  std::size_t chunk_bytes = 256 * 1024;  ///< longest message of a pipelined algorithm
  std::size_t chunks_in_flight = 4;      ///< messages in flight between two ranks
  int direct_exchange_ranks = 8;         ///< up to this size, small operations use direct_exchange
  std::size_t point_to_point_chunk_bytes = std::size_t{1} << 30U;  ///< longest message of a send
  std::size_t all_pieces_bytes = std::size_t{4} << 20;  ///< memory for pieces of all ranks, which reduce_blocks divides
  bool direct_reduce_scatter = false;  ///< large reductions use direct_reduce_scatter: all ranks share a host
};

struct ChannelInfo {
  std::string name;
  std::vector<int> job_ranks;  ///< rank in the job of each rank of the channel
  Tuning tuning;
  DescribeOperation describe{};
  Accumulate accumulate{};
};

/// Buffers of a collective on this rank. A broadcast uses the output; a barrier has none.
struct Buffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  const BlockExchange* blocks = nullptr;  ///< of the operations that have one
};

struct ChannelAlgorithms;

/// One operation on one rank. Lifetime: as its Routine.
template <Endpoint E>
struct OperationContext {
  E& endpoint;
  Scratch& scratch;
  const ChannelInfo& channel;
  Operation operation;
  ChannelAlgorithms* algorithms = nullptr;  ///< of the channel; null: Tuning alone selects

  FramePool& frames() noexcept { return endpoint.frames(); }
  int rank() const noexcept { return endpoint.rank(); }
  int size() const noexcept { return endpoint.size(); }

  /// The rank that is `distance` away, modulo size; 0 <= distance < size.
  int after(int distance) const noexcept { return (rank() + distance) % size(); }
  int before(int distance) const noexcept { return (rank() - distance + size()) % size(); }

  /// The reduction step for algorithms that pass partial results from rank to rank.
  kernels::PartialReduction partial_reduction() const noexcept {
    return {operation.dtype, operation.op, size(), channel.accumulate};
  }
};

/// A communicator with an endpoint runs `routine` for each all_reduce among two or more ranks. The result has equal
/// bits on every rank, which depend only on the operation, the number of ranks and Tuning. Lifetime: `context` and
/// `buffers` outlive the routine.
template <Endpoint E>
struct SelectedAllReduce {
  std::string_view topology{};                                                         ///< for messages
  Routine (*routine)(OperationContext<E>& context, const Buffers& buffers) = nullptr;  ///< null: the communicator's own
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
