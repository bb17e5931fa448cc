#pragma once
/// @file
/// All-reduce over messages by reduction up a binary tree and broadcast down it, in a pipeline of chunks.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {
namespace detail {

/// Rank r's parent is (r - 1) / 2; its children are 2r + 1 and 2r + 2. A rank without children sends its contribution
/// to its parent, another rank its partial result.
template <Endpoint E>
class TreeSchedule {
 public:
  TreeSchedule(const OperationContext<E>& context, const Buffers& buffers)
      : buffers_(buffers),
        reduction_(context.partial_reduction()),
        blocks_(context.operation.count, context.operation.dtype, 1, context.channel.tuning, reduction_.type()),
        rank_(context.rank()),
        size_(context.size()),
        headers_(context.scratch.at_least(HeaderExchange<E>::bytes(context) +
                                          (children() == 0 ? 0 : in_flight() * slots * blocks_.chunk_bytes()))),
        memory_(headers_ + HeaderExchange<E>::bytes(context)) {}

  int parent() const noexcept { return rank_ == 0 ? -1 : (rank_ - 1) / 2; }
  int first_child() const noexcept { return 2 * rank_ + 1; }
  int children() const noexcept { return std::clamp(size_ - first_child(), 0, 2); }

  std::size_t chunks() const noexcept { return blocks_.chunks(); }
  std::size_t in_flight() const noexcept { return blocks_.chunks_in_flight(); }

  /// Chunks that a rank sends up before it handles the first one that comes down: as many as are on their way through
  /// the tree, and at least twice those in flight. Equal on every rank.
  std::size_t lag() const noexcept {
    return std::max(2 * in_flight(), 2 * static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(size_))));
  }

  std::byte* headers() const noexcept { return headers_; }

  std::span<std::byte> from_child(std::size_t chunk, int child) const noexcept {
    return {slot(chunk, static_cast<std::size_t>(child)), bytes_from(first_child() + child, extent(chunk))};
  }
  std::span<const std::byte> to_parent(std::size_t chunk) const noexcept {
    const std::byte* const memory = children() == 0 ? buffers_.input + extent(chunk).offset : slot(chunk, slots - 1);
    return {memory, bytes_from(rank_, extent(chunk))};
  }
  std::span<std::byte> result(std::size_t chunk) const noexcept {
    return {buffers_.output + extent(chunk).offset, extent(chunk).bytes};
  }

  /// Combines this rank's contribution with those of its children, into the result or into the message to the parent.
  void combine(std::size_t chunk) const noexcept {
    if (children() == 0) {
      return;
    }
    std::array<kernels::PartialReduction::Operand, slots> sources{{{buffers_.input + extent(chunk).offset, false}}};
    for (int child = 0; child < children(); ++child) {
      sources[static_cast<std::size_t>(child) + 1] = {from_child(chunk, child).data(),
                                                      has_children(first_child() + child)};
    }
    const bool last = parent() < 0;
    reduction_({sources.data(), static_cast<std::size_t>(children()) + 1},
               last ? result(chunk).data() : slot(chunk, slots - 1), extent(chunk).count, last);
  }

 private:
  static constexpr std::size_t slots = 3;

  bool has_children(int rank) const noexcept { return 2 * rank + 1 < size_; }
  Extent extent(std::size_t chunk) const noexcept { return blocks_.chunk(0, chunk / in_flight(), chunk % in_flight()); }
  std::size_t bytes_from(int rank, const Extent& extent) const noexcept {
    return has_children(rank) ? extent.count * size_bytes(reduction_.type()) : extent.bytes;
  }
  std::byte* slot(std::size_t chunk, std::size_t index) const noexcept {
    return memory_ + (chunk % in_flight() * slots + index) * blocks_.chunk_bytes();
  }

  const Buffers& buffers_;
  kernels::PartialReduction reduction_;
  Blocks blocks_;
  int rank_;
  int size_;
  std::byte* headers_;
  std::byte* memory_;  ///< a chunk of each child and one for the parent, for each chunk in flight
};

}  // namespace detail

/// About 2 log2(size) steps, so it is for small buffers on many ranks. One tree; source of the pipeline: P. Sanders, J.
/// Speck and J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Comput. 35
/// (2009), 2. In step s, chunk s goes up and chunk s - lag() comes down. No deadlock: a message waits only for messages
/// of earlier steps, of the same step that are further down the tree, or, on the way down, further up.
template <Endpoint E>
Routine tree(OperationContext<E>& context, const Buffers& buffers) {
  using MessageHandle = typename E::MessageHandle;
  const detail::TreeSchedule<E> schedule(context, buffers);
  const int parent = schedule.parent();
  const std::size_t children = static_cast<std::size_t>(schedule.children());
  const std::size_t chunks = schedule.chunks();
  const std::size_t in_flight = schedule.in_flight();
  std::array<std::array<MessageHandle, 2>, max_chunks_in_flight> from_child;
  std::array<std::array<MessageHandle, 2>, max_chunks_in_flight> to_child;
  std::array<MessageHandle, max_chunks_in_flight> from_parent;
  std::array<MessageHandle, max_chunks_in_flight> to_parent;
  const auto rank_of = [&](std::size_t child) { return schedule.first_child() + static_cast<int>(child); };
  const auto receive_from_children = [&](std::size_t chunk) {
    for (std::size_t child = 0; child < children; ++child) {
      from_child[chunk % in_flight][child] = context.endpoint.recv(schedule.from_child(chunk, static_cast<int>(child)),
                                                                   rank_of(child), TagClass::collective);
    }
  };
  const HeaderExchange<E> headers(context, schedule.headers());
  for (std::size_t chunk = 0; chunk < std::min(chunks, in_flight); ++chunk) {
    receive_from_children(chunk);
  }
  const std::size_t header = co_await context.endpoint.done(headers.header_received());
  headers.check(context, header);
  for (std::size_t step = 0; step < chunks + schedule.lag(); ++step) {
    const std::size_t index = step % in_flight;
    if (parent >= 0 && step >= in_flight && step < chunks + in_flight) {
      co_await context.endpoint.done(to_parent[index]);
    }
    if (step < chunks) {
      for (std::size_t child = 0; child < children; ++child) {
        const std::size_t bytes = co_await context.endpoint.done(from_child[index][child]);
        check_length(context, rank_of(child), bytes, schedule.from_child(step, static_cast<int>(child)).size());
      }
      schedule.combine(step);
      if (step + in_flight < chunks) {
        receive_from_children(step + in_flight);
      }
      if (parent >= 0) {
        to_parent[index] = context.endpoint.send(schedule.to_parent(step), parent, TagClass::collective);
      }
    }
    const std::size_t lag = schedule.lag();
    if (step >= lag) {
      const std::size_t chunk = step - lag;
      if (parent >= 0) {
        const std::size_t bytes = co_await context.endpoint.done(from_parent[chunk % in_flight]);
        check_length(context, parent, bytes, schedule.result(chunk).size());
      }
      for (std::size_t child = 0; child < children; ++child) {
        if (chunk >= in_flight) {
          co_await context.endpoint.done(to_child[chunk % in_flight][child]);
        }
        to_child[chunk % in_flight][child] =
            context.endpoint.send(schedule.result(chunk), rank_of(child), TagClass::collective);
      }
    }
    if (parent >= 0 && step + in_flight >= lag && step + in_flight - lag < chunks) {  // its memory's chunk went up
      const std::size_t chunk = step + in_flight - lag;
      from_parent[chunk % in_flight] = context.endpoint.recv(schedule.result(chunk), parent, TagClass::collective);
    }
  }
  for (std::size_t child = 0; child < children; ++child) {
    for (std::size_t index = 0; index < std::min(chunks, in_flight); ++index) {
      co_await context.endpoint.done(to_child[index][child]);
    }
  }
  co_await context.endpoint.done(headers.header_sent());
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
