#pragma once
/// @file
/// Synchronous parameter server: all-reduce over messages, in which each of the first ranks reduces one shard of the
/// buffer.

#include <algorithm>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {
namespace detail {

/// Chunks and messages of one rank, in the channel's scratch memory. Ranks 0 to servers - 1 are servers. A server has
/// memory for two chunks of each rank: with many ranks, chunks are shorter.
template <Endpoint E>
class ServerSchedule {
 public:
  using MessageHandle = typename E::MessageHandle;

  ServerSchedule(OperationContext<E>& context, const Buffers& buffers, int servers)
      : context_(context),
        buffers_(buffers),
        servers_(std::min(servers, context.size())),
        ranks_(static_cast<std::size_t>(context.size())),
        blocks_(context.operation.count, context.operation.dtype, servers_, tuning_of(context)) {
    const std::size_t headers = HeaderExchange<E>::bytes(context);
    const std::size_t slots = serves() ? 2 * ranks_ * blocks_.chunk_bytes() : 0;
    const std::size_t handles = handle_lists * ranks_;
    static_assert(alignof(MessageHandle) <= alignof(const std::byte*));
    headers_ =
        context.scratch.at_least(headers + slots + ranks_ * sizeof(const std::byte*) + handles * sizeof(MessageHandle));
    slots_ = headers_ + headers;
    sources_ = reinterpret_cast<const std::byte**>(slots_ + slots);
    std::uninitialized_default_construct_n(sources_, ranks_);
    handles_ = reinterpret_cast<MessageHandle*>(sources_ + ranks_);
    std::uninitialized_default_construct_n(handles_, handles);
  }

  std::byte* headers() const noexcept { return headers_; }
  int servers() const noexcept { return servers_; }
  bool serves() const noexcept { return context_.rank() < servers_; }
  std::size_t chunks() const noexcept { return blocks_.chunks(); }

  /// Message of a chunk to a server, of a chunk from a rank to this server, of a result to a rank, and from a server.
  MessageHandle& pushed(std::size_t chunk, int server) const noexcept { return handle(chunk % 2, server); }
  MessageHandle& gathered(std::size_t chunk, int rank) const noexcept { return handle(2 + chunk % 2, rank); }
  MessageHandle& result_to(int rank) const noexcept { return handle(4, rank); }
  MessageHandle& result_from(int server) const noexcept { return handle(5, server); }

  /// This server's memory for a chunk of `rank`.
  std::span<std::byte> contribution(std::size_t chunk, int rank) const noexcept {
    return {slots_ + (chunk % 2 * ranks_ + static_cast<std::size_t>(rank)) * blocks_.chunk_bytes(),
            extent(chunk, context_.rank()).bytes};
  }
  std::span<std::byte> result(std::size_t chunk, int server) const noexcept {
    return {buffers_.output + extent(chunk, server).offset, extent(chunk, server).bytes};
  }

  /// Starts this rank's messages to the servers and, on a server, those from the other ranks.
  void push(std::size_t chunk) const {
    for (int distance = 1; distance < context_.size(); ++distance) {
      if (serves()) {
        const int rank = context_.after(distance);
        gathered(chunk, rank) = context_.endpoint.recv(contribution(chunk, rank), rank, TagClass::collective);
      }
      const int server = context_.before(distance);
      if (server < servers_) {
        const Extent part = extent(chunk, server);
        pushed(chunk, server) =
            context_.endpoint.send({buffers_.input + part.offset, part.bytes}, server, TagClass::collective);
      }
    }
  }

  /// Reduces the contributions of all ranks in rank order, with one rounding at the end.
  void reduce(std::size_t chunk) const noexcept {
    const Extent own = extent(chunk, context_.rank());
    for (int rank = 0; rank < context_.size(); ++rank) {
      sources_[rank] = rank == context_.rank() ? buffers_.input + own.offset : contribution(chunk, rank).data();
    }
    const kernels::PartialReduction reduction(context_.operation.dtype, context_.operation.op, context_.size(),
                                              Accumulate::f32);
    reduction.all(std::span(sources_, ranks_), buffers_.output + own.offset, own.count);
  }

 private:
  static constexpr std::size_t handle_lists = 6;

  static Tuning tuning_of(const OperationContext<E>& context) {
    Tuning tuning = context.channel.tuning;
    const std::size_t most = tuning.all_pieces_bytes / static_cast<std::size_t>(context.size());
    tuning.chunk_bytes = std::max<std::size_t>(64, std::min(tuning.chunk_bytes, most));
    tuning.chunks_in_flight = 2;
    return tuning;
  }

  Extent extent(std::size_t chunk, int server) const noexcept { return blocks_.chunk(server, chunk / 2, chunk % 2); }
  MessageHandle& handle(std::size_t list, int rank) const noexcept {
    return handles_[list * ranks_ + static_cast<std::size_t>(rank)];
  }

  OperationContext<E>& context_;
  const Buffers& buffers_;
  int servers_;
  std::size_t ranks_;
  Blocks blocks_;
  std::byte* headers_;
  std::byte* slots_;
  const std::byte** sources_;
  MessageHandle* handles_;
};

}  // namespace detail

/// Every rank sends each server its part of that server's shard, in chunks. The server reduces the parts of all ranks
/// in rank order, with the bits of SharedMemory, and sends the result to all. The next chunk is on its way meanwhile.
/// With n ranks, a server's link carries n - 1 times its shard: for few ranks, or for servers with faster links.
/// Source: M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; here synchronous.
/// With fewer ranks than `servers`, all are servers.
template <Endpoint E>
Routine parameter_server(OperationContext<E>& context, const Buffers& buffers, int servers) {
  const detail::ServerSchedule<E> schedule(context, buffers, servers);
  const HeaderExchange<E> headers(context, schedule.headers());
  schedule.push(0);
  const std::size_t header = co_await context.endpoint.done(headers.header_received());
  headers.check(context, header);
  for (std::size_t chunk = 0; chunk < schedule.chunks(); ++chunk) {
    if (chunk + 1 < schedule.chunks()) {
      schedule.push(chunk + 1);
    }
    for (int distance = 1; schedule.serves() && distance < context.size(); ++distance) {
      const int rank = context.after(distance);
      const std::size_t bytes = co_await context.endpoint.done(schedule.gathered(chunk, rank));
      check_length(context, rank, bytes, schedule.contribution(chunk, rank).size());
    }
    if (schedule.serves()) {
      schedule.reduce(chunk);
    }
    for (int distance = 1; schedule.serves() && distance < context.size(); ++distance) {
      const int rank = context.after(distance);
      schedule.result_to(rank) =
          context.endpoint.send(schedule.result(chunk, context.rank()), rank, TagClass::collective);
    }
    for (int server = 0; server < schedule.servers(); ++server) {
      if (server != context.rank()) {  // the result may replace what was sent
        co_await context.endpoint.done(schedule.pushed(chunk, server));
        schedule.result_from(server) =
            context.endpoint.recv(schedule.result(chunk, server), server, TagClass::collective);
      }
    }
    for (int server = 0; server < schedule.servers(); ++server) {
      if (server != context.rank()) {
        const std::size_t bytes = co_await context.endpoint.done(schedule.result_from(server));
        check_length(context, server, bytes, schedule.result(chunk, server).size());
      }
    }
    for (int distance = 1; schedule.serves() && distance < context.size(); ++distance) {
      co_await context.endpoint.done(schedule.result_to(context.after(distance)));
    }
  }
  co_await context.endpoint.done(headers.header_sent());
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
