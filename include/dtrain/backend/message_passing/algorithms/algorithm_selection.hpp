#pragma once
/// @file
/// collective(): selects and runs an algorithm over messages, by size and number of ranks or by measured cost, equally
/// on every rank.

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>

#include "dtrain/backend/message_passing/algorithms/algorithm_table.hpp"
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
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {
namespace detail {

/// Rank 0 sends the message to `peer`, which sends it back. @param shortest seconds of a round trip until now
template <Endpoint E>
Routine round_trip(OperationContext<E>& context, int peer, std::span<std::byte> message, double& shortest) {
  const auto begin = std::chrono::steady_clock::now();
  for (int turn = 0; turn < 2; ++turn) {
    const bool sends = (context.rank() == 0) == (turn == 0);
    const typename E::MessageHandle handle = sends ? context.endpoint.send(message, peer, TagClass::collective)
                                                   : context.endpoint.recv(message, peer, TagClass::collective);
    const std::size_t bytes = co_await context.endpoint.done(handle);
    if (!sends) {
      check_length(context, peer, bytes, message.size());
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  shortest = std::min(shortest, seconds.count());
}

/// Measures between rank 0 and the last rank, which is on another host if there are several. After their headers both
/// ranks are in the operation.
template <Endpoint E>
Routine measure_link(OperationContext<E>& context, LinkCost& link) {
  constexpr int short_trips = 5;
  constexpr int long_trips = 2;
  constexpr std::size_t short_bytes = 64;
  constexpr std::size_t long_bytes = std::size_t{64} * 1024;
  const int last = context.size() - 1;
  if (context.rank() != 0 && context.rank() != last) {
    co_return;
  }
  const int peer = context.rank() == 0 ? last : 0;
  std::byte* const memory = context.scratch.at_least(2 * header_bytes(context) + long_bytes);
  const HeaderMessage received{memory + header_bytes(context)};
  Routine headers = exchange_headers(context, peer, {memory}, peer, received);
  co_await headers;
  double shortest[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  const std::span<std::byte> message(memory + 2 * header_bytes(context), long_bytes);
  std::fill(message.begin(), message.end(), std::byte{0});
  for (int trip = 0; trip < short_trips + long_trips; ++trip) {
    const bool is_long = trip >= short_trips;
    Routine routine =
        round_trip(context, peer, message.first(is_long ? long_bytes : short_bytes), shortest[is_long ? 1 : 0]);
    co_await routine;
  }
  link.message_seconds = shortest[0] / 2;
  link.byte_seconds = std::max(0.0, shortest[1] - shortest[0]) / 2 / static_cast<double>(long_bytes - short_bytes);
}

}  // namespace detail

/// Collective: the context's first all_reduce begins with this call. Afterwards all ranks have rank 0's table.
template <Endpoint E>
Routine settle_algorithms(OperationContext<E>& context, ChannelAlgorithms& algorithms) {
  LinkCost link = algorithms.choice.link;
  if (algorithms.choice.basis == AlgorithmChoice::Basis::measured) {
    Routine routine = detail::measure_link(context, link);
    co_await routine;
  }
  AlgorithmTable table;
  if (context.rank() == 0) {
    table = AlgorithmTable::cheapest(context.size(), context.channel.tuning, link);
  }
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(&table, 1));
  Routine routine = bytes.size() <= context.channel.tuning.small_bytes ? broadcast_small(context, bytes)
                                                                       : broadcast_large(context, bytes);
  co_await routine;
  if (!table.is_valid()) {
    detail::disagree(context, 0, "sent a table with an unknown algorithm; do all ranks run one program?");
  }
  algorithms.table = table;
  algorithms.is_settled = true;
  if (context.rank() == 0) {
    log(LogLevel::info, format_text("channel '{}': all_reduce by {}", {context.channel.name, table.description()}));
  }
}

/// The fixed choice for an all_reduce of S bytes, P bytes of partial results, on n ranks. Few ranks: at most
/// Tuning::direct_exchange_ranks.
/// 1. Few ranks and S up to small_bytes: direct exchange, in which no rank waits for what another one forwards.
/// 2. P up to small_bytes: recursive doubling, log2(n) messages that are their own headers.
/// 3. Few ranks on one host: direct reduce-scatter, in which each element is read and written once. But where halving
///    has two or more stages (4, 6 and 8 ranks), it has fewer messages, which saves more up to 128 KiB for each rank.
/// 4. Otherwise halving-doubling: it sends as little as a ring, in log2(n) steps, and its longest parts go to
///    neighbours, which share a host. By the formulas in algorithm_table.hpp it is the cheapest above small_bytes for
///    every link with alpha of 0.4 us to 100 us and beta of 6e-11 to 8e-8 s/byte, so the choice needs no measurement.
inline AllReduceAlgorithm algorithm_of(const CollectiveShape& shape, const Tuning& tuning) noexcept {
  constexpr std::size_t halved_bytes_per_rank = std::size_t{128} * 1024;
  const bool few = shape.ranks <= tuning.direct_exchange_ranks;
  if (few && shape.bytes() <= tuning.small_bytes) {
    return AllReduceAlgorithm::direct_exchange;
  }
  if (shape.partial_bytes() <= tuning.small_bytes) {
    return AllReduceAlgorithm::recursive_doubling;
  }
  if (!few || !tuning.direct_reduce_scatter) {
    return AllReduceAlgorithm::halving_doubling;
  }
  const bool saves_messages = HalvingStages(shape.ranks).count() > 1;
  return saves_messages && shape.bytes() <= static_cast<std::size_t>(shape.ranks) * halved_bytes_per_rank
             ? AllReduceAlgorithm::halving_doubling
             : AllReduceAlgorithm::direct_reduce_scatter;
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
AllReduceAlgorithm all_reduce_algorithm(const OperationContext<E>& context) noexcept {
  const Operation& operation = context.operation;
  const CollectiveShape shape{context.size(), operation.count, operation.dtype, context.partial_reduction().type()};
  const Tuning& tuning = context.channel.tuning;
  return context.algorithms == nullptr ? algorithm_of(shape, tuning) : context.algorithms->table.at(shape, tuning);
}

template <Endpoint E>
Routine all_reduce(OperationContext<E>& context, const Buffers& buffers) {
  if (context.algorithms != nullptr && !context.algorithms->is_settled) {
    Routine routine = settle_algorithms(context, *context.algorithms);
    co_await routine;
  }
  const std::size_t count = context.operation.count;
  Routine routine;
  switch (all_reduce_algorithm(context)) {
    case AllReduceAlgorithm::direct_exchange: routine = direct_exchange(context, buffers); break;
    case AllReduceAlgorithm::recursive_doubling: routine = recursive_doubling(context, buffers); break;
    case AllReduceAlgorithm::halving_doubling: routine = halving_doubling(context, buffers); break;
    case AllReduceAlgorithm::direct_reduce_scatter: routine = reduce_long(context, buffers, count, true, true); break;
    case AllReduceAlgorithm::ring: routine = reduce_long(context, buffers, count, true, false); break;
  }
  co_await routine;
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
/// number of ranks, Tuning and rank 0's AlgorithmTable, unless the endpoint implements the collective. Lifetime:
/// `context` and `buffers` outlive the routine.
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
