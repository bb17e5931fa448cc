#pragma once
/// @file
/// Direct exchange among few ranks: small reductions and all-gathers, in which every rank sends once to every other,
/// and reduce-scatter and all-reduce of large buffers, in which rank r reduces block r.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/algorithms/ring_collectives.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

inline constexpr int max_direct_exchange_ranks = 16;

/// Each rank receives `bytes` from every other, and reduces them in rank order or concatenates them.
struct DirectExchange {
  const std::byte* input;  ///< if `blocks`, one block for each rank; else one block for all
  std::byte* output;
  std::size_t bytes;  ///< of a block
  std::size_t count;  ///< of a block, in elements
  bool blocks;        ///< each rank receives its own block of the input
  bool reduces;
};

template <Endpoint E>
Routine direct_exchange(OperationContext<E>& context, const DirectExchange& work) {
  using MessageHandle = typename E::MessageHandle;
  const int size = context.size();
  const int self = context.rank();
  const std::size_t header = header_bytes(context);
  std::byte* const memory = context.scratch.at_least(2 * static_cast<std::size_t>(size) * header);
  const auto sent_memory = [&](int peer) {
    return memory + static_cast<std::size_t>(work.blocks ? peer : self) * header;
  };
  const auto received_header = [&](int peer) { return memory + static_cast<std::size_t>(size + peer) * header; };
  const auto block_for = [&](int peer) {
    const std::size_t offset = work.blocks ? static_cast<std::size_t>(peer) * work.bytes : 0;
    return std::span(work.input + offset, work.bytes);
  };
  std::array<MessageHandle, max_direct_exchange_ranks> sent;
  std::array<MessageHandle, max_direct_exchange_ranks> received;
  for (int distance = 1; distance < size; ++distance) {
    const int peer = context.before(distance);
    received[static_cast<std::size_t>(peer)] =
        context.endpoint.recv(header_memory(context, received_header(peer)), peer, TagClass::collective);
  }
  std::span<const std::byte> message;
  for (int distance = 1; distance < size; ++distance) {
    const int peer = context.after(distance);
    if (work.blocks || distance == 1) {
      message = write_header(context, sent_memory(peer), block_for(peer));
    }
    sent[static_cast<std::size_t>(peer)] = context.endpoint.send(message, peer, TagClass::collective);
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer != self) {
      const std::size_t bytes = co_await context.endpoint.done(received[static_cast<std::size_t>(peer)]);
      check_header(context, peer, received_header(peer), bytes, work.bytes);
    }
  }
  const auto block_of = [&](int peer) {
    return peer == self ? block_for(self).data() : inline_payload(received_header(peer));
  };
  if (work.reduces) {
    std::array<const std::byte*, max_direct_exchange_ranks> sources{};
    for (int peer = 0; peer < size; ++peer) {
      sources[static_cast<std::size_t>(peer)] = block_of(peer);
    }
    const std::array<std::byte*, 1> targets{work.output};
    kernels::Reduction::of(context.operation.dtype, context.operation.op)(
        std::span(sources).first(static_cast<std::size_t>(size)), targets, work.count);
  } else {
    for (int peer = 0; peer < size; ++peer) {
      std::byte* const target = work.output + static_cast<std::size_t>(peer) * work.bytes;
      if (target != block_of(peer)) {
        kernels::copy_bytes(target, block_of(peer), work.bytes);
      }
    }
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer != self) {
      co_await context.endpoint.done(sent[static_cast<std::size_t>(peer)]);
    }
  }
}

namespace detail {

/// Numbers messages as RingSchedule does. Message m goes to every peer and comes from every peer. A round has one or
/// two steps: each block's owner receives the block from all peers; then, if the work gathers, sends the result to all.
template <Endpoint E>
class DirectSchedule {
 public:
  DirectSchedule(OperationContext<E>& context, const BlockCollective& work, std::byte* slots) noexcept
      : context_(context),
        work_(work),
        slots_(slots),
        in_flight_(work.blocks.chunks_in_flight()),
        steps_(work.gathers ? 2 : 1) {}

  std::size_t messages() const noexcept { return work_.blocks.rounds() * steps_ * in_flight_; }

  std::span<const std::byte> outgoing(std::size_t m, int peer) const noexcept {
    const bool gives = is_result(m);
    const Extent extent = extent_of(m, gives ? context_.rank() : peer);
    return {(gives ? work_.output : work_.input) + extent.offset, extent.bytes};
  }

  std::span<std::byte> incoming(std::size_t m, int peer) const noexcept {
    const bool gives = is_result(m);
    const Extent extent = extent_of(m, gives ? peer : context_.rank());
    return {gives ? work_.output + extent.offset : slot(m, peer), extent.bytes};
  }

  /// Reduces once message `m` of every peer has arrived: in rank order, with one rounding at the end.
  void arrived(std::size_t m) const noexcept {
    if (is_result(m)) {
      return;
    }
    const Extent extent = extent_of(m, context_.rank());
    std::array<const std::byte*, max_direct_exchange_ranks> sources{};
    for (int rank = 0; rank < context_.size(); ++rank) {
      sources[static_cast<std::size_t>(rank)] = rank == context_.rank() ? work_.input + extent.offset : slot(m, rank);
    }
    const std::size_t own = static_cast<std::size_t>(context_.rank()) * work_.blocks.block_bytes();
    const std::array<std::byte*, 1> targets{work_.output + extent.offset - (work_.gathers ? 0 : own)};
    kernels::Reduction::of(context_.operation.dtype, context_.operation.op)(
        std::span(sources).first(static_cast<std::size_t>(context_.size())), targets, extent.count);
  }

 private:
  bool is_result(std::size_t m) const noexcept { return m / in_flight_ % steps_ == 1; }
  Extent extent_of(std::size_t m, int block) const noexcept {
    return work_.blocks.chunk(block, m / in_flight_ / steps_, m % in_flight_);
  }
  std::byte* slot(std::size_t m, int peer) const noexcept {
    return slots_ + (m % in_flight_ * static_cast<std::size_t>(context_.size()) + static_cast<std::size_t>(peer)) *
                        work_.blocks.chunk_bytes();
  }

  OperationContext<E>& context_;
  const BlockCollective& work_;
  std::byte* slots_;
  std::size_t in_flight_;
  std::size_t steps_;
};

}  // namespace detail

/// Sends as many bytes as a ring, in 2 steps instead of 2 (size - 1). Each element is read and written once, by the
/// rank that reduces it; the bits are those of SharedMemory. Between hosts, a ring meets fewer bottlenecks.
/// Requires: `work` reduces; at most max_direct_exchange_ranks.
template <Endpoint E>
Routine direct_reduce_scatter(OperationContext<E>& context, const BlockCollective& work) {
  using MessageHandle = typename E::MessageHandle;
  const std::size_t in_flight = work.blocks.chunks_in_flight();
  const std::size_t size = static_cast<std::size_t>(context.size());
  const std::size_t header = header_bytes(context);
  std::byte* const memory =
      context.scratch.at_least((size + 1) * header + in_flight * size * work.blocks.chunk_bytes());
  const auto received_header = [&](int peer) { return memory + static_cast<std::size_t>(peer + 1) * header; };
  const detail::DirectSchedule<E> schedule(context, work, memory + (size + 1) * header);
  const std::size_t messages = schedule.messages();
  std::array<MessageHandle, max_direct_exchange_ranks> header_sent;
  std::array<MessageHandle, max_direct_exchange_ranks> header_received;
  std::array<std::array<MessageHandle, max_direct_exchange_ranks>, max_chunks_in_flight> sent;
  std::array<std::array<MessageHandle, max_direct_exchange_ranks>, max_chunks_in_flight> received;
  const auto start = [&](std::size_t m) {
    for (int distance = 1; distance < context.size(); ++distance) {
      const int peer = context.before(distance);
      received[m % in_flight][static_cast<std::size_t>(peer)] =
          context.endpoint.recv(schedule.incoming(m, peer), peer, TagClass::collective);
    }
    for (int distance = 1; distance < context.size(); ++distance) {
      const int peer = context.after(distance);
      sent[m % in_flight][static_cast<std::size_t>(peer)] =
          context.endpoint.send(schedule.outgoing(m, peer), peer, TagClass::collective);
    }
  };
  const std::span<const std::byte> message = write_header(context, memory, {});
  for (int distance = 1; distance < context.size(); ++distance) {
    const auto peer = static_cast<std::size_t>(context.after(distance));
    header_sent[peer] = context.endpoint.send(message, context.after(distance), TagClass::collective);
    const auto other = static_cast<std::size_t>(context.before(distance));
    header_received[other] = context.endpoint.recv(header_memory(context, received_header(context.before(distance))),
                                                   context.before(distance), TagClass::collective);
  }
  for (std::size_t m = 0; m < in_flight; ++m) {
    start(m);
  }
  for (int distance = 1; distance < context.size(); ++distance) {
    const int peer = context.before(distance);
    const std::size_t bytes = co_await context.endpoint.done(header_received[static_cast<std::size_t>(peer)]);
    check_header(context, peer, received_header(peer), bytes, 0);
  }
  for (std::size_t m = 0; m < messages; ++m) {
    for (int distance = 1; distance < context.size(); ++distance) {
      const int peer = context.before(distance);
      const std::size_t bytes = co_await context.endpoint.done(received[m % in_flight][static_cast<std::size_t>(peer)]);
      check_length(context, peer, bytes, schedule.incoming(m, peer).size());
    }
    schedule.arrived(m);
    for (int distance = 1; distance < context.size(); ++distance) {
      co_await context.endpoint.done(sent[m % in_flight][static_cast<std::size_t>(context.after(distance))]);
    }
    if (m + in_flight < messages) {
      start(m + in_flight);
    }
  }
  for (int distance = 1; distance < context.size(); ++distance) {
    co_await context.endpoint.done(header_sent[static_cast<std::size_t>(context.after(distance))]);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
