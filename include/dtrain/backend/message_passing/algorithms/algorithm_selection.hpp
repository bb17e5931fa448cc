#pragma once
/// @file
/// collective(): selects and runs an algorithm over messages, by size and number of ranks, equally on every rank.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/broadcast.hpp"
#include "dtrain/backend/message_passing/algorithms/direct_exchange.hpp"
#include "dtrain/backend/message_passing/algorithms/exchange_blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/halving_doubling.hpp"
#include "dtrain/backend/message_passing/algorithms/halving_stages.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/algorithms/ring_collectives.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A buffer and the ranks that reduce it.
struct CollectiveShape {
  int ranks;
  std::size_t count;  ///< elements of the whole buffer
  DType dtype;
  DType partial;  ///< type of partial results

  constexpr std::size_t bytes() const noexcept { return count * size_bytes(dtype); }
  constexpr std::size_t partial_bytes() const noexcept { return count * size_bytes(partial); }
};

enum class AllReduceAlgorithm : std::uint8_t {
  direct_exchange,
  direct_reduce_scatter,
  recursive_doubling,
  halving_doubling,
  ring,
};

/// For an all_reduce of S bytes, P bytes of partial results, on n ranks. Few: up to Tuning::direct_exchange_ranks.
/// 1. Few ranks and S up to small_bytes: direct exchange, in which no rank waits for what another one forwards.
/// 2. P up to small_bytes: recursive doubling, log2(n) messages that are their own headers.
/// 3. Few ranks on one host: direct reduce-scatter, in which each element is read and written once. But where halving
///    has two or more stages (4, 6 and 8 ranks), it has fewer messages, which saves more up to 128 KiB for each rank.
/// 4. Otherwise halving-doubling: it sends as little as a ring, in log2(n) steps, and its longest parts go to
///    neighbours, which share a host. But where HalvingStages have extra ranks (n = 11, 13, 17, 19, 22, ...), whose
///    partners send everything twice, a ring above 128 KiB for each rank.
/// A measured cost of messages would hardly choose otherwise: above small_bytes, with several hosts or n > 8,
/// halving-doubling without extra ranks is the cheapest for every alpha of 0.4 us to 100 us and beta of 6e-11 to 8e-8
/// s/byte. Source of the formulas: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
/// operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), 4.
inline AllReduceAlgorithm algorithm_of(const CollectiveShape& shape, const Tuning& tuning) noexcept {
  const bool few = shape.ranks <= tuning.direct_exchange_ranks;
  if (few && shape.bytes() <= tuning.small_bytes) {
    return AllReduceAlgorithm::direct_exchange;
  }
  if (shape.partial_bytes() <= tuning.small_bytes) {
    return AllReduceAlgorithm::recursive_doubling;
  }
  const HalvingStages stages(shape.ranks);
  const bool is_long = shape.bytes() > static_cast<std::size_t>(shape.ranks) * 128 * 1024;
  if (few && tuning.direct_reduce_scatter) {
    return stages.count() == 1 || is_long ? AllReduceAlgorithm::direct_reduce_scatter
                                          : AllReduceAlgorithm::halving_doubling;
  }
  return stages.extra_ranks() > 0 && is_long ? AllReduceAlgorithm::ring : AllReduceAlgorithm::halving_doubling;
}

// clang-format off

/// An Endpoint that implements some collectives itself, the same ones on every rank.
template <class E>
concept CarriesCollectives =
    Endpoint<E> && requires(E& endpoint, OperationContext<E>& context, const Buffers& buffers) {
  { endpoint.carries(context.operation) } noexcept -> std::same_as<bool>;
  { endpoint.collective(context, buffers) } -> std::same_as<Routine>;
};
// clang-format on

namespace detail {

/// Whether a small operation runs as direct_exchange.
template <Endpoint E>
bool uses_direct_exchange(const OperationContext<E>& context, std::size_t bytes) noexcept {
  return context.size() <= context.channel.tuning.direct_exchange_ranks && bytes <= context.channel.tuning.small_bytes;
}

/// Reduces long buffers of `count` elements in all blocks, by direct_reduce_scatter or by ring with partial results.
template <Endpoint E>
Routine reduce_long(OperationContext<E>& context, const Buffers& buffers, std::size_t count, bool gathers,
                    bool direct) {
  const Tuning& tuning = context.channel.tuning;
  const DType dtype = context.operation.dtype;
  const DType carried = direct ? dtype : context.partial_reduction().type();
  const BlockCollective work{buffers.input, buffers.output, Blocks(count, dtype, context.size(), tuning, carried), true,
                             gathers};
  Routine routine = direct ? direct_reduce_scatter(context, work) : ring(context, work);
  co_await routine;
}

template <Endpoint E>
Routine all_reduce(OperationContext<E>& context, const Buffers& buffers) {
  const Operation& operation = context.operation;
  const std::size_t count = operation.count;
  const CollectiveShape shape{context.size(), count, operation.dtype, context.partial_reduction().type()};
  switch (algorithm_of(shape, context.channel.tuning)) {
    case AllReduceAlgorithm::direct_exchange: return direct_exchange(context, buffers);
    case AllReduceAlgorithm::recursive_doubling: return recursive_doubling(context, buffers);
    case AllReduceAlgorithm::direct_reduce_scatter: return reduce_long(context, buffers, count, true, true);
    case AllReduceAlgorithm::ring: return reduce_long(context, buffers, count, true, false);
    default: return halving_doubling(context, buffers);
  }
}

template <Endpoint E>
Routine reduce_scatter(OperationContext<E>& context, const Buffers& buffers) {
  const Operation& operation = context.operation;
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  if (uses_direct_exchange(context, bytes)) {
    return direct_exchange(context, buffers);
  }
  const Tuning& tuning = context.channel.tuning;
  const bool direct = tuning.direct_reduce_scatter && context.size() <= tuning.direct_exchange_ranks;
  const std::size_t count = operation.count * static_cast<std::size_t>(context.size());
  return reduce_long(context, buffers, count, false, direct);
}

template <Endpoint E>
Routine all_gather(OperationContext<E>& context, const Buffers& buffers) {
  const Operation& operation = context.operation;
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  if (uses_direct_exchange(context, bytes)) {
    Routine routine = direct_exchange(context, buffers);
    co_await routine;
  } else {
    std::byte* const own = buffers.output + static_cast<std::size_t>(context.rank()) * bytes;
    if (own != buffers.input) {
      kernels::copy_bytes(own, buffers.input, bytes);
    }
    const Blocks blocks(operation.count * static_cast<std::size_t>(context.size()), operation.dtype, context.size(),
                        context.channel.tuning);
    const BlockCollective work{nullptr, buffers.output, blocks, false, true};
    Routine routine = ring(context, work);
    co_await routine;
  }
}

template <Endpoint E>
Routine broadcast(OperationContext<E>& context, const Buffers& buffers) {
  const std::size_t bytes = context.operation.count * size_bytes(context.operation.dtype);
  const std::span buffer(buffers.output, bytes);
  return bytes <= context.channel.tuning.small_bytes ? broadcast_small(context, buffer)
                                                     : broadcast_large(context, buffer);
}

/// A channel of one rank: copies input to output.
inline void copy_own(const Operation& operation, const Buffers& buffers) noexcept {
  const bool moves = operation.kind != OperationKind::barrier && operation.kind != OperationKind::broadcast;
  if (moves && buffers.input != buffers.output) {
    kernels::copy_bytes(buffers.output, buffers.input, operation.count * size_bytes(operation.dtype));
  }
}

}  // namespace detail

/// Runs the context's collective. The result's bits are equal on every rank, and depend only on the operation, the
/// number of ranks and Tuning, unless the endpoint implements the collective. Lifetime: `context` and `buffers` outlive
/// the routine.
template <Endpoint E>
Routine collective(OperationContext<E>& context, const Buffers& buffers) {
  if (buffers.blocks != nullptr) {
    Routine exchange =
        is_reduction(context.operation.kind) ? reduce_blocks(context, buffers) : exchange_blocks(context, buffers);
    co_await exchange;
    co_return;
  }
  if (context.size() == 1) {
    detail::copy_own(context.operation, buffers);
    co_return;
  }
  Routine routine;
  if constexpr (CarriesCollectives<E>) {
    if (context.endpoint.carries(context.operation)) {
      routine = context.endpoint.collective(context, buffers);
      co_await routine;
      co_return;
    }
  }
  switch (context.operation.kind) {
    case OperationKind::all_reduce: routine = detail::all_reduce(context, buffers); break;
    case OperationKind::reduce_scatter: routine = detail::reduce_scatter(context, buffers); break;
    case OperationKind::all_gather: routine = detail::all_gather(context, buffers); break;
    case OperationKind::broadcast: routine = detail::broadcast(context, buffers); break;
    case OperationKind::barrier: routine = barrier(context); break;
    case OperationKind::send:
    case OperationKind::recv:
    case OperationKind::send_recv:
    case OperationKind::reduce:
    case OperationKind::gather:
    case OperationKind::scatter:
    case OperationKind::all_to_all:
    case OperationKind::all_gather_v:
    case OperationKind::reduce_scatter_v:
    case OperationKind::all_to_all_v:
    case OperationKind::gather_v:
    case OperationKind::scatter_v:
    case OperationKind::none:
      throw_error(Errc::unsupported, "{} is no collective of buffers without blocks", {name(context.operation.kind)});
  }
  co_await routine;
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
