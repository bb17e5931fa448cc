#pragma once
/// @file
/// Broadcast over messages: a binomial tree for small buffers, a pipelined chain for large ones.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Binomial tree: in each step, every rank that has the buffer sends it to one more rank, so the number of these ranks
/// doubles. Source: Thakur, Rabenseifner and Gropp (see halving_doubling.hpp), 4.3. @param buffer of at most
/// Tuning::small_bytes
template <Endpoint E>
Routine broadcast_small(OperationContext<E>& context, std::span<std::byte> buffer) {
  using MessageHandle = typename E::MessageHandle;
  const int size = context.size();
  const int root = context.operation.root;
  const int relative_rank = (context.rank() - root + size) % size;  // the root's is 0
  std::byte* const memory = context.scratch.at_least(header_bytes(context) + HeaderExchange<E>::bytes(context));
  const HeaderExchange<E> headers(context, memory + header_bytes(context));
  const auto rank_at = [&](int at) { return (at + root) % size; };
  int reach = 1;  // ranks in the subtree of this one
  while (reach < size && (relative_rank & reach) == 0) {
    reach *= 2;
  }
  const std::size_t length = co_await context.endpoint.done(headers.header_received());
  headers.check(context, length);
  if (relative_rank != 0) {
    const int parent = rank_at(relative_rank - reach);
    const MessageHandle received = context.endpoint.recv(header_memory(context, memory), parent, TagClass::collective);
    const std::size_t bytes = co_await context.endpoint.done(received);
    check_header(context, parent, memory, bytes, buffer.size());
    kernels::copy_bytes(buffer.data(), inline_payload(memory), buffer.size());
  }
  const std::span<const std::byte> message = write_header(context, memory, buffer);
  std::array<MessageHandle, 32> sent;
  std::size_t children = 0;
  for (int distance = reach / 2; distance > 0; distance /= 2) {
    if (relative_rank + distance < size) {
      sent[children++] = context.endpoint.send(message, rank_at(relative_rank + distance), TagClass::collective);
    }
  }
  for (std::size_t child = 0; child < children; ++child) {
    co_await context.endpoint.done(sent[child]);
  }
  co_await context.endpoint.done(headers.header_sent());
}

/// Chain: each rank sends a chunk to the next while it receives the following one. Time: that of the whole buffer plus
/// that of one chunk for each rank but two. Source: J. Pjesivac-Grbovic et al., "Performance analysis of MPI collective
/// operations", Cluster Computing 10 (2007), "pipeline".
template <Endpoint E>
Routine broadcast_large(OperationContext<E>& context, std::span<std::byte> buffer) {
  using MessageHandle = typename E::MessageHandle;
  const int root = context.operation.root;
  const bool receives = context.rank() != root;
  const bool sends = context.after(1) != root;
  const int previous = context.before(1);
  const int next = context.after(1);
  const Blocks blocks(buffer.size(), DType::u8, 1, context.channel.tuning);
  const std::size_t in_flight = blocks.chunks_in_flight();
  const std::size_t messages = blocks.rounds() * in_flight;
  const auto chunk = [&](std::size_t m) {
    const Extent extent = blocks.chunk(0, m / in_flight, m % in_flight);
    return buffer.subspan(extent.offset, extent.bytes);
  };
  const HeaderExchange<E> headers(context, context.scratch.at_least(HeaderExchange<E>::bytes(context)));
  std::array<MessageHandle, max_chunks_in_flight> received;
  std::array<MessageHandle, max_chunks_in_flight> sent;
  for (std::size_t m = 0; receives && m < in_flight; ++m) {
    received[m] = context.endpoint.recv(chunk(m), previous, TagClass::collective);
  }
  const std::size_t bytes = co_await context.endpoint.done(headers.header_received());
  headers.check(context, bytes);
  for (std::size_t m = 0; m < messages; ++m) {
    const std::size_t index = m % in_flight;
    if (receives) {
      const std::size_t length = co_await context.endpoint.done(received[index]);
      check_length(context, previous, length, chunk(m).size());
      if (m + in_flight < messages) {
        received[index] = context.endpoint.recv(chunk(m + in_flight), previous, TagClass::collective);
      }
    }
    if (sends) {
      if (m >= in_flight) {
        co_await context.endpoint.done(sent[index]);
      }
      sent[index] = context.endpoint.send(chunk(m), next, TagClass::collective);
    }
  }
  if (sends) {
    for (std::size_t index = 0; index < in_flight; ++index) {
      co_await context.endpoint.done(sent[index]);
    }
  }
  co_await context.endpoint.done(headers.header_sent());
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
