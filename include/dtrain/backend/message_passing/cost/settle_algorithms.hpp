#pragma once
/// @file
/// Settles a channel's all_reduce algorithms: measures alpha and beta by ping-pong, and broadcasts rank 0's table.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <span>

#include "dtrain/backend/message_passing/algorithms/broadcast.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/cost/algorithm_table.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

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

/// Between rank 0 and the last rank, which is on another host if there are several. Headers first: both ranks are then
/// in the operation.
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
  std::byte* const received_header = memory + header_bytes(context);
  const typename E::MessageHandle received =
      context.endpoint.recv(header_memory(context, received_header), peer, TagClass::collective);
  const typename E::MessageHandle sent =
      context.endpoint.send(write_header(context, memory, {}), peer, TagClass::collective);
  const std::size_t bytes = co_await context.endpoint.done(received);
  check_header(context, peer, received_header, bytes, 0);
  co_await context.endpoint.done(sent);
  double shortest[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  const std::span<std::byte> message(received_header + header_bytes(context), long_bytes);
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

/// Collective: the context's first all_reduce begins with it. Afterwards all ranks have rank 0's table.
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

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
