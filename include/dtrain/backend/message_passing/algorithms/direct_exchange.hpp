#pragma once
/// @file
/// Direct exchange over messages, for few ranks: each sends small buffers once to every other; of large ones, rank r
/// reduces block r.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/algorithms/ring_collectives.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

inline constexpr int max_direct_exchange_ranks = 16;

/// Each rank receives a block from every other, and reduces them in rank order (all_reduce, reduce_scatter) or
/// concatenates them (all_gather). For a reduce_scatter each rank receives its own block of the input.
template <Endpoint E>
Routine direct_exchange(OperationContext<E>& context, const Buffers& buffers) {
  using MessageHandle = typename E::MessageHandle;
  const Operation& operation = context.operation;
  const bool scatters = operation.kind == OperationKind::reduce_scatter;
  const std::size_t block_bytes = operation.count * size_bytes(operation.dtype);
  const int size = context.size();
  const int self = context.rank();
  const std::size_t header = header_bytes(context);
  std::byte* const memory = context.scratch.at_least(2 * static_cast<std::size_t>(size) * header);
  const auto sent_memory = [&](int peer) { return memory + static_cast<std::size_t>(scatters ? peer : self) * header; };
  const auto received_header = [&](int peer) { return memory + static_cast<std::size_t>(size + peer) * header; };
  const auto block_for = [&](int peer) {
    return std::span(buffers.input + (scatters ? static_cast<std::size_t>(peer) * block_bytes : 0), block_bytes);
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
    if (scatters || distance == 1) {
      message = write_header(context, sent_memory(peer), block_for(peer));
    }
    sent[static_cast<std::size_t>(peer)] = context.endpoint.send(message, peer, TagClass::collective);
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer != self) {
      const std::size_t bytes = co_await context.endpoint.done(received[static_cast<std::size_t>(peer)]);
      check_header(context, peer, received_header(peer), bytes, block_bytes);
    }
  }
  const auto block_of = [&](int peer) {
    return peer == self ? block_for(self).data() : inline_payload(received_header(peer));
  };
  if (is_reduction(operation.kind)) {
    std::array<const std::byte*, max_direct_exchange_ranks> sources{};
    for (int peer = 0; peer < size; ++peer) {
      sources[static_cast<std::size_t>(peer)] = block_of(peer);
    }
    const std::array<std::byte*, 1> targets{buffers.output};
    kernels::Reduction::of(operation.dtype, operation.op)(std::span(sources).first(static_cast<std::size_t>(size)),
                                                          targets, operation.count);
  } else {
    for (int peer = 0; peer < size; ++peer) {
      std::byte* const target = buffers.output + static_cast<std::size_t>(peer) * block_bytes;
      if (target != block_of(peer)) {
        kernels::copy_bytes(target, block_of(peer), block_bytes);
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
class DirectSchedule : public ChunkSchedule {
 public:
  static constexpr std::size_t most_peers = max_direct_exchange_ranks;

  DirectSchedule(OperationContext<E>& context, const BlockCollective& work)
      : context_(context),
        work_(work),
        in_flight_(work.blocks.chunks_in_flight()),
        steps_(work.gathers ? 2 : 1),
        headers_((peers() + 2) * header_bytes(context)),
        memory_(context.scratch.at_least(headers_ + in_flight_ * (peers() + 1) * work.blocks.chunk_bytes())) {}

  std::size_t peers() const noexcept { return static_cast<std::size_t>(context_.size()) - 1; }
  int to(std::size_t k) const noexcept { return context_.after(static_cast<int>(k) + 1); }
  int from(std::size_t k) const noexcept { return context_.before(static_cast<int>(k) + 1); }
  std::byte* sent_header(std::size_t /*k*/) const noexcept { return memory_; }
  std::byte* received_header(std::size_t k) const noexcept { return memory_ + (k + 1) * header_bytes(context_); }
  std::size_t in_flight() const noexcept { return in_flight_; }
  std::size_t messages() const noexcept { return work_.blocks.rounds() * steps_ * in_flight_; }

  std::span<const std::byte> outgoing(std::size_t m, std::size_t k) const noexcept {
    const bool gives = is_result(m);
    const Extent extent = extent_of(m, gives ? context_.rank() : to(k));
    return {(gives ? work_.output : work_.input) + extent.offset, extent.bytes};
  }

  std::span<std::byte> incoming(std::size_t m, std::size_t k) const noexcept {
    const bool gives = is_result(m);
    const Extent extent = extent_of(m, gives ? from(k) : context_.rank());
    return {gives ? work_.output + extent.offset : slot(m, from(k)), extent.bytes};
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
    return memory_ + headers_ +
           (m % in_flight_ * (peers() + 1) + static_cast<std::size_t>(peer)) * work_.blocks.chunk_bytes();
  }

  OperationContext<E>& context_;
  const BlockCollective& work_;
  std::size_t in_flight_;
  std::size_t steps_;
  std::size_t headers_;  ///< bytes of all headers; the slots follow them
  std::byte* memory_;
};

}  // namespace detail

/// Sends as many bytes as a ring, in 2 steps instead of 2 (size - 1). Each element is read and written once, by the
/// rank that reduces it; the bits are those of SharedMemory. Between hosts, a ring meets fewer bottlenecks.
/// Requires: `work` reduces; at most max_direct_exchange_ranks. Lifetime: `work` outlives the routine.
template <Endpoint E>
Routine direct_reduce_scatter(OperationContext<E>& context, const BlockCollective& work) {
  return exchange_chunks(context, detail::DirectSchedule<E>(context, work));
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
