#pragma once
/// @file
/// OperationContext: the endpoint, the channel's memory and the operation that an algorithm runs with.

#include <cstddef>
#include <string>
#include <vector>

#include "dtrain/backend/message_passing/coroutine_frame_pool.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/scratch.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Which algorithm runs from which size on, and how messages are cut. The same on every rank.
struct Tuning {
  std::size_t small_bytes = 8192;        ///< what travels in an operation's first message, to one peer
  std::size_t chunk_bytes = 256 * 1024;  ///< the most of a message of a pipelined algorithm
  std::size_t chunks_in_flight = 4;      ///< how many of these are on their way between two ranks
  int direct_exchange_ranks = 8;         ///< up to so many ranks send small reductions to all others
  std::size_t point_to_point_chunk_bytes = std::size_t{1} << 30U;  ///< the most of one message of a send
  bool all_to_all = false;  ///< large reductions go straight to the rank that reduces them: all ranks share a host
};

/// The same for every operation of a channel.
struct ChannelInfo {
  std::string name;
  std::vector<int> job_ranks;  ///< of the channel's ranks
  Tuning tuning;
  DescribeOperation describe{};
  Accumulate accumulate{};
};

/// One operation on one rank. Lifetime: as its Routine.
template <Endpoint E>
struct OperationContext {
  E& endpoint;
  Scratch& scratch;
  const ChannelInfo& channel;
  Operation operation;

  FramePool& frames() noexcept { return endpoint.frames(); }
  int rank() const noexcept { return endpoint.rank(); }
  int size() const noexcept { return endpoint.size(); }

  /// The rank that is `distance` away, modulo size; 0 <= distance < size.
  int after(int distance) const noexcept { return (rank() + distance) % size(); }
  int before(int distance) const noexcept { return (rank() - distance + size()) % size(); }

  /// Of a reduction that goes from rank to rank.
  kernels::PartialReduction partial_reduction() const noexcept {
    return {operation.dtype, operation.op, size(), channel.accumulate};
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
