#pragma once
/// @file
/// Which algorithm carries out an operation: decided by its size and the number of ranks, alike on every rank.

#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>

#include "dtrain/backend/message_passing/all_to_all.hpp"
#include "dtrain/backend/message_passing/barrier.hpp"
#include "dtrain/backend/message_passing/blocks.hpp"
#include "dtrain/backend/message_passing/broadcast.hpp"
#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/doubling.hpp"
#include "dtrain/backend/message_passing/exchange.hpp"
#include "dtrain/backend/message_passing/ring.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/backend/message_passing/transfer.hpp"
#include "dtrain/core/dtype.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// The buffers of a collective on this rank; a broadcast's is the output, a barrier has none.
struct Buffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

// clang-format 14 tears requires-expressions apart.
// clang-format off

/// A Wire that carries some collectives itself, alike on every rank.
template <class W>
concept CarriesCollectives = Wire<W> && requires(W& wire, Call<W>& call, const Buffers& buffers) {
  { wire.carries(call.operation) } noexcept -> std::same_as<bool>;
  { wire.collective(call, buffers) } -> std::same_as<Routine>;
};
// clang-format on

namespace detail {

/// Whether everybody sends to everybody.
template <Wire W>
bool is_exchanged(const Call<W>& call, std::size_t bytes) noexcept {
  return call.size() <= call.place.tuning.exchange_ranks && bytes <= call.place.tuning.small_bytes;
}

/// Long buffers are reduced: every block goes straight to its rank, or round the ring as partial results. Of `count`
/// elements in all blocks.
template <Wire W>
Routine pass_blocks(Call<W>& call, const Buffers& buffers, std::size_t count, bool gathers) {
  const Tuning& tuning = call.place.tuning;
  const DType dtype = call.operation.dtype;
  const bool direct = tuning.all_to_all && call.size() <= tuning.exchange_ranks;
  const DType carried = direct ? dtype : call.partial_reduction().type();
  const RingWork work{buffers.input, buffers.output, Blocks(count, dtype, call.size(), tuning, carried), true, gathers};
  Routine part = direct ? all_to_all(call, work) : ring(call, work);
  co_await part;
}

template <Wire W>
Routine all_reduce(Call<W>& call, const Buffers& buffers) {
  const Operation& operation = call.operation;
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  if (is_exchanged(call, bytes)) {
    const ExchangeWork work{buffers.input, buffers.output, bytes, operation.count, false, true};
    Routine part = exchange(call, work);
    co_await part;
  } else if (operation.count * size_bytes(call.partial_reduction().type()) <= call.place.tuning.small_bytes) {
    const DoublingWork work{buffers.input, buffers.output, bytes, operation.count};
    Routine part = doubling(call, work);
    co_await part;
  } else {
    Routine part = pass_blocks(call, buffers, operation.count, true);
    co_await part;
  }
}

template <Wire W>
Routine reduce_scatter(Call<W>& call, const Buffers& buffers) {
  const Operation& operation = call.operation;
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  if (is_exchanged(call, bytes)) {
    const ExchangeWork work{buffers.input, buffers.output, bytes, operation.count, true, true};
    Routine part = exchange(call, work);
    co_await part;
  } else {
    Routine part = pass_blocks(call, buffers, operation.count * static_cast<std::size_t>(call.size()), false);
    co_await part;
  }
}

template <Wire W>
Routine all_gather(Call<W>& call, const Buffers& buffers) {
  const Operation& operation = call.operation;
  const std::size_t bytes = operation.count * size_bytes(operation.dtype);
  if (is_exchanged(call, bytes)) {
    const ExchangeWork work{buffers.input, buffers.output, bytes, operation.count, false, false};
    Routine part = exchange(call, work);
    co_await part;
  } else {
    std::byte* const own = buffers.output + static_cast<std::size_t>(call.rank()) * bytes;
    if (own != buffers.input) {
      kernels::copy_bytes(own, buffers.input, bytes);
    }
    const Blocks blocks(operation.count * static_cast<std::size_t>(call.size()), operation.dtype, call.size(),
                        call.place.tuning);
    const RingWork work{nullptr, buffers.output, blocks, false, true};
    Routine part = ring(call, work);
    co_await part;
  }
}

template <Wire W>
Routine broadcast(Call<W>& call, const Buffers& buffers) {
  const std::size_t bytes = call.operation.count * size_bytes(call.operation.dtype);
  const std::span buffer(buffers.output, bytes);
  Routine part = bytes <= call.place.tuning.small_bytes ? broadcast_small(call, buffer) : broadcast_large(call, buffer);
  co_await part;
}

/// A channel of one rank: what is reduced, gathered or scattered is its own.
inline void alone(const Operation& operation, const Buffers& buffers) noexcept {
  const bool moves = operation.kind != OperationKind::barrier && operation.kind != OperationKind::broadcast;
  if (moves && buffers.input != buffers.output) {
    kernels::copy_bytes(buffers.output, buffers.input, operation.count * size_bytes(operation.dtype));
  }
}

}  // namespace detail

/// Carries out the collective that the call names. Its bits depend on the operation, the number of ranks and Tuning
/// alone, and are the same on every rank, unless the wire carries it. Lifetime: `call` and `buffers` as the routine.
template <Wire W>
Routine collective(Call<W>& call, const Buffers& buffers) {
  if (call.size() == 1) {
    detail::alone(call.operation, buffers);
    co_return;
  }
  Routine part;
  if constexpr (CarriesCollectives<W>) {
    if (call.wire.carries(call.operation)) {
      part = call.wire.collective(call, buffers);
      co_await part;
      co_return;
    }
  }
  switch (call.operation.kind) {
    case OperationKind::all_reduce: part = detail::all_reduce(call, buffers); break;
    case OperationKind::reduce_scatter: part = detail::reduce_scatter(call, buffers); break;
    case OperationKind::all_gather: part = detail::all_gather(call, buffers); break;
    case OperationKind::broadcast: part = detail::broadcast(call, buffers); break;
    default: part = barrier(call); break;
  }
  co_await part;
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
