#pragma once
/// @file
/// OperationContext: endpoint, scratch memory and descriptor of one operation over messages. Tuning: thresholds and
/// chunk sizes, equal on every rank.

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/allocation_table.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

namespace detail {

inline constexpr std::align_val_t page{4096};

struct FreePages {
  void operator()(std::byte* memory) const noexcept { ::operator delete(memory, page); }
};
using Pages = std::unique_ptr<std::byte, FreePages>;

/// Uninitialized. @throws std::bad_alloc
inline Pages allocate_pages(std::size_t bytes) {
  return Pages(static_cast<std::byte*>(::operator new(bytes, page)));
}

}  // namespace detail

/// Zeroed. @throws Error (out_of_memory)
HostAllocation allocate_zeroed(std::size_t bytes);

/// A channel's working memory, which grows on demand and is reused. Aligned to 4 KiB. Threads: as the operations of a
/// channel, one at a time.
class Scratch {
 public:
  /// At least `bytes` of uninitialized memory. Invalidates the result of earlier calls. @throws std::bad_alloc
  std::byte* at_least(std::size_t bytes);

  /// Forgets the memory without freeing it, because the transport may still write to it.
  void leak() noexcept {
    static_cast<void>(memory_.release());
    bytes_ = 0;
  }

 private:
  detail::Pages memory_;
  std::size_t bytes_ = 0;
};

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
  const BlockExchange* blocks = nullptr;  ///< the exchange of an operation that has one
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
  std::string_view topology{};                                                         ///< name in messages
  Routine (*routine)(OperationContext<E>& context, const Buffers& buffers) = nullptr;  ///< null: the communicator's own
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED HostAllocation allocate_zeroed(std::size_t bytes) {
  detail::Pages memory;
  try {
    memory = detail::allocate_pages(bytes == 0 ? 1 : bytes);
  } catch (const std::bad_alloc&) {
    throw_error(Errc::out_of_memory, "no {} bytes of memory could be had{}", {bytes, limit_hint(ENOMEM)});
  }
  std::memset(memory.get(), 0, bytes);
  return {std::move(memory), bytes};
}

DTRAIN_DEFINED std::byte* Scratch::at_least(std::size_t bytes) {
  if (bytes > bytes_) {
    bytes_ = 0;
    memory_.reset();
    memory_ = detail::allocate_pages(bytes);
    bytes_ = bytes;
  }
  return memory_.get();
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
