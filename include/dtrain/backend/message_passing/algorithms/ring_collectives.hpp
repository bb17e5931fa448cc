#pragma once
/// @file
/// Pipelined ring over messages: reduce-scatter, all-gather, or both in turn as all-reduce.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A collective over blocks, one for each rank. Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
/// algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69 (2009). As in NCCL's ring, blocks are
/// divided into chunks.
struct BlockCollective {
  const std::byte* input;  ///< all blocks of the reduction; unused without one
  std::byte* output;       ///< if `gathers`, all blocks, this rank's in its place; else this rank's block alone
  Blocks blocks;
  bool reduces;
  bool gathers;
};

namespace detail {

/// Numbers the messages of a ring: by round, then by step, then by chunk in flight.
template <Endpoint E>
class RingSchedule : public ChunkSchedule {
 public:
  static constexpr std::size_t most_peers = 1;

  RingSchedule(OperationContext<E>& context, const BlockCollective& work)
      : context_(context),
        work_(work),
        combine_(context.partial_reduction()),
        in_flight_(work.blocks.chunks_in_flight()),
        reductions_(work.reduces ? static_cast<std::size_t>(context.size()) - 1 : 0),
        steps_(reductions_ + (work.gathers ? static_cast<std::size_t>(context.size()) - 1 : 0)),
        memory_(context.scratch.at_least(2 * header_bytes(context) + 2 * in_flight_ * work.blocks.chunk_bytes())) {}

  std::size_t peers() const noexcept { return 1; }
  int to(std::size_t /*k*/) const noexcept { return context_.after(1); }
  int from(std::size_t /*k*/) const noexcept { return context_.before(1); }
  std::byte* sent_header(std::size_t /*k*/) const noexcept { return memory_; }
  std::byte* received_header(std::size_t /*k*/) const noexcept { return memory_ + header_bytes(context_); }
  std::size_t in_flight() const noexcept { return in_flight_; }
  std::size_t messages() const noexcept { return work_.blocks.rounds() * steps_ * in_flight_; }

  /// Message `m` to the next rank.
  std::span<const std::byte> outgoing(std::size_t m, std::size_t /*k*/) const noexcept {
    const std::size_t step = step_of(m);
    if (step < reductions_) {
      const Extent extent = extent_of(m, context_.before(static_cast<int>(step) + 1));
      return step == 0 ? std::span(work_.input + extent.offset, extent.bytes)
                       : std::span<const std::byte>(slot(m - in_flight_), partial_bytes(extent));
    }
    const Extent extent = extent_of(m, context_.before(static_cast<int>(step - reductions_)));
    return {gathered(extent), extent.bytes};
  }

  /// Memory for message `m` from the previous rank: first its contribution, then partial results, then results.
  std::span<std::byte> incoming(std::size_t m, std::size_t /*k*/) const noexcept {
    const Extent extent = received(m);
    const std::size_t step = step_of(m);
    if (step >= reductions_) {
      return {gathered(extent), extent.bytes};
    }
    return step == 0 ? std::span(combine_.contributions_in(slot(m), extent.count), extent.bytes)
                     : std::span(slot(m), partial_bytes(extent));
  }

  /// Message `m` has arrived: combines it with this rank's contribution.
  void arrived(std::size_t m) const noexcept {
    const std::size_t step = step_of(m);
    if (step >= reductions_) {
      return;
    }
    const Extent extent = received(m);
    const bool last = step + 1 == reductions_;
    const std::array<kernels::PartialReduction::Operand, 2> sources{
        {{incoming(m, 0).data(), step > 0}, {work_.input + extent.offset, false}}};
    combine_(sources, last ? reduced(extent) : slot(m), extent.count, last);
  }

 private:
  std::size_t step_of(std::size_t m) const noexcept { return m / in_flight_ % steps_; }
  Extent extent_of(std::size_t m, int block) const noexcept {
    return work_.blocks.chunk(block, m / in_flight_ / steps_, m % in_flight_);
  }

  /// The block that message `m` from the previous rank carries. A block's reduction starts at the rank after its owner
  /// and ends at the owner; then the all-gather passes it on from there.
  Extent received(std::size_t m) const noexcept {
    const std::size_t step = step_of(m);
    const std::size_t distance = step < reductions_ ? step + 2 : step - reductions_ + 1;
    return extent_of(m, context_.before(static_cast<int>(distance) % context_.size()));
  }

  std::size_t partial_bytes(const Extent& extent) const noexcept { return extent.count * size_bytes(combine_.type()); }

  std::byte* gathered(const Extent& extent) const noexcept { return work_.output + extent.offset; }
  std::byte* reduced(const Extent& extent) const noexcept {
    const std::size_t own = static_cast<std::size_t>(context_.rank()) * work_.blocks.block_bytes();
    return work_.output + extent.offset - (work_.gathers ? 0 : own);
  }

  /// Two slots for each chunk in flight: one is sent while the next message arrives in the other.
  std::byte* slot(std::size_t m) const noexcept {
    return memory_ + 2 * header_bytes(context_) + m % (2 * in_flight_) * work_.blocks.chunk_bytes();
  }

  OperationContext<E>& context_;
  const BlockCollective& work_;
  kernels::PartialReduction combine_;
  std::size_t in_flight_;
  std::size_t reductions_;  ///< steps that reduce
  std::size_t steps_;
  std::byte* memory_;  ///< two headers, then the slots
};

}  // namespace detail

/// Lifetime: `work` outlives the routine.
template <Endpoint E>
Routine ring(OperationContext<E>& context, const BlockCollective& work) {
  return exchange_chunks(context, detail::RingSchedule<E>(context, work));
}

/// An all_reduce as a ring, for buffers of every length.
template <Endpoint E>
Routine ring_all_reduce(OperationContext<E>& context, const Buffers& buffers) {
  const Operation& operation = context.operation;
  const BlockCollective work{buffers.input, buffers.output,
                             Blocks(operation.count, operation.dtype, context.size(), context.channel.tuning,
                                    context.partial_reduction().type()),
                             true, true};
  Routine routine = ring(context, work);
  co_await routine;
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
