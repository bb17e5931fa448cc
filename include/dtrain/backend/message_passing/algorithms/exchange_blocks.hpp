#pragma once
/// @file
/// Algorithms over messages: send, recv, or both at once; exchange and reduction of blocks of any lengths, between all
/// ranks or with a root.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// `to` = -1: no send; `from` = -1: no recv. `sent` is the descriptor of `input`; the context's operation is the
/// descriptor that the sender must give for `output`.
struct PointToPoint {
  std::span<const std::byte> input;
  std::span<std::byte> output;
  int to;
  int from;
  Operation sent;
  TagClass tag_class = TagClass::direct;
  std::byte* headers = nullptr;  ///< memory for two; null: the scratch
};

/// A short message travels in the header. A longer one follows the header in chunks, two of which are in flight in each
/// direction. A rank posts a recv before it waits for a chunk, so ranks cannot deadlock in a ring.
template <Endpoint E>
Routine point_to_point(OperationContext<E>& context, const PointToPoint& work) {
  using MessageHandle = typename E::MessageHandle;
  const std::size_t small = context.channel.tuning.small_bytes;
  const std::size_t max_bytes = context.channel.tuning.point_to_point_chunk_bytes;
  const auto chunks = [&](std::size_t bytes) { return bytes <= small ? 0 : (bytes + max_bytes - 1) / max_bytes; };
  const std::size_t sends = work.to < 0 ? 0 : chunks(work.input.size());
  const std::size_t receives = work.from < 0 ? 0 : chunks(work.output.size());
  std::byte* const memory =
      work.headers != nullptr ? work.headers : context.scratch.at_least(2 * header_bytes(context));
  std::byte* const received_header = memory + header_bytes(context);
  std::array<MessageHandle, 2> sent;
  std::array<MessageHandle, 2> received;
  const auto start = [&](std::size_t chunk) {
    const std::size_t begin = chunk * max_bytes;
    if (chunk < receives) {
      const std::span<std::byte> bytes_of_chunk =
          work.output.subspan(begin, std::min(max_bytes, work.output.size() - begin));
      received[chunk % 2] = context.endpoint.recv(bytes_of_chunk, work.from, work.tag_class);
    }
    if (chunk < sends) {
      const std::span<const std::byte> bytes_of_chunk =
          work.input.subspan(begin, std::min(max_bytes, work.input.size() - begin));
      sent[chunk % 2] = context.endpoint.send(bytes_of_chunk, work.to, work.tag_class);
    }
  };
  MessageHandle header_sent;
  MessageHandle header_received;
  if (work.from >= 0) {
    header_received = context.endpoint.recv(header_memory(context, received_header), work.from, work.tag_class);
  }
  if (work.to >= 0) {
    const std::span<const std::byte> payload = work.input.first(sends == 0 ? work.input.size() : 0);
    header_sent = context.endpoint.send(write_header(memory, payload, work.sent), work.to, work.tag_class);
  }
  start(0);
  if (work.from >= 0) {
    const std::size_t payload = receives == 0 ? work.output.size() : 0;
    const std::size_t bytes = co_await context.endpoint.done(header_received);
    check_header(context, work.from, received_header, bytes, payload);
    if (payload > 0) {
      kernels::copy_bytes(work.output.data(), inline_payload(received_header), payload);
    }
  }
  for (std::size_t chunk = 0; chunk < std::max(sends, receives); ++chunk) {
    start(chunk + 1);
    if (chunk < receives) {
      const std::size_t bytes = co_await context.endpoint.done(received[chunk % 2]);
      check_length(context, work.from, bytes, std::min(max_bytes, work.output.size() - chunk * max_bytes));
    }
    if (chunk < sends) {
      co_await context.endpoint.done(sent[chunk % 2]);
    }
  }
  if (work.to >= 0) {
    co_await context.endpoint.done(header_sent);
  }
}

namespace detail {

/// Bytes [begin, end) of each block, as far as the block has them.
struct BlockPiece {
  std::size_t begin;
  std::size_t end;

  std::size_t offset(const BlockRange& block, std::size_t element) const noexcept {
    return std::min<std::size_t>(begin, block.count * element);
  }
  std::size_t bytes(const BlockRange& block, std::size_t element) const noexcept {
    return std::min<std::size_t>(end, block.count * element) - offset(block, element);
  }
};

/// Sends a piece of each block to its rank, one rank after the other. `memory_of(rank)` is the memory for the piece
/// from a rank. In step d, rank r sends to r + d and receives from r - d. @param headers memory for two
template <Endpoint E, class MemoryOf>
Routine exchange_pieces(OperationContext<E>& context, const Buffers& buffers, BlockPiece piece, MemoryOf memory_of,
                        std::byte* headers) {
  const BlockExchange& blocks = *buffers.blocks;
  const std::size_t element = size_bytes(context.operation.dtype);
  for (int distance = 1; distance < context.size(); ++distance) {
    const int to = context.after(distance);
    const int from = context.before(distance);
    const BlockRange& sent = blocks.sent[static_cast<std::size_t>(to)];
    const BlockRange& received = blocks.received[static_cast<std::size_t>(from)];
    PointToPoint work{{}, {}, -1, -1, context.operation, TagClass::collective, headers};
    work.sent.count = sent.count;  // the whole block's: ranks compare the first piece's descriptor
    context.operation.count = received.count;
    if (blocks.connects(context.rank(), to)) {
      work.to = to;
      work.input = {buffers.input + sent.offset * element + piece.offset(sent, element), piece.bytes(sent, element)};
    }
    if (blocks.connects(from, context.rank())) {
      work.from = from;
      work.output = {memory_of(from), piece.bytes(received, element)};
    }
    Routine routine = point_to_point(context, work);
    co_await routine;
  }
}

/// An exchange with a root has no message between most pairs of ranks, so a barrier compares the calls.
template <Endpoint E>
Routine compare_with_all(OperationContext<E>& context, const BlockExchange& blocks) {
  if (blocks.goes_to_root() || blocks.comes_from_root()) {
    Routine routine = barrier(context);
    co_await routine;
  }
}

}  // namespace detail

/// Copies this rank's own block, and exchanges the others directly (pairwise exchange). Source: R. Thakur, R.
/// Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
/// Comput. Appl. 19 (2005), 4.3.
template <Endpoint E>
Routine exchange_blocks(OperationContext<E>& context, const Buffers& buffers) {
  const BlockExchange& blocks = *buffers.blocks;
  const std::size_t element = size_bytes(context.operation.dtype);
  const auto block_from = [&](int rank) {
    return buffers.output + blocks.received[static_cast<std::size_t>(rank)].offset * element;
  };
  Routine compared = detail::compare_with_all(context, blocks);
  co_await compared;
  const BlockRange& own = blocks.sent[static_cast<std::size_t>(context.rank())];
  if (own.count != 0 && buffers.input + own.offset * element != block_from(context.rank())) {
    kernels::copy_bytes(block_from(context.rank()), buffers.input + own.offset * element, own.count * element);
  }
  std::byte* const headers = context.scratch.at_least(2 * header_bytes(context));
  const detail::BlockPiece whole{0, static_cast<std::size_t>(-1)};
  Routine routine = detail::exchange_pieces(context, buffers, whole, block_from, headers);
  co_await routine;
}

/// Each rank collects a piece of its block from all ranks and reduces it in rank order, with one rounding at the end.
/// The bits are those of SharedMemory, for every length of the blocks.
template <Endpoint E>
Routine reduce_blocks(OperationContext<E>& context, const Buffers& buffers) {
  const BlockExchange& blocks = *buffers.blocks;
  const std::size_t size = static_cast<std::size_t>(context.size());
  const std::size_t self = static_cast<std::size_t>(context.rank());
  const std::size_t element = size_bytes(context.operation.dtype);
  const std::byte* const own = buffers.input + blocks.sent[self].offset * element;
  if (size == 1) {
    if (own != buffers.output && blocks.sent[self].count != 0) {
      kernels::copy_bytes(buffers.output, own, blocks.sent[self].count * element);
    }
    co_return;
  }
  Routine compared = detail::compare_with_all(context, blocks);
  co_await compared;
  const std::size_t most = context.channel.tuning.all_pieces_bytes / size;
  const std::size_t length = std::max<std::size_t>(64, std::min(context.channel.tuning.chunk_bytes, most) / 64 * 64);
  std::size_t longest = 0;
  for (const BlockRange& block : blocks.sent) {
    longest = std::max<std::size_t>(longest, block.count * element);
  }
  const std::size_t own_bytes = blocks.received[self].count * element;
  const std::size_t headers = 2 * header_bytes(context);
  std::byte* const memory = context.scratch.at_least(headers + (own_bytes != 0 ? size * length : 0));
  std::vector<const std::byte*> sources(size);
  std::size_t begin = 0;
  do {
    const detail::BlockPiece piece{begin, begin + length};
    const auto slot = [&](int rank) { return memory + headers + static_cast<std::size_t>(rank) * length; };
    Routine routine = detail::exchange_pieces(context, buffers, piece, slot, memory);
    co_await routine;
    if (begin < own_bytes) {
      for (std::size_t rank = 0; rank < size; ++rank) {
        sources[rank] = rank == self ? own + begin : slot(static_cast<int>(rank));
      }
      std::byte* const target = buffers.output + begin;
      kernels::Reduction::of(context.operation.dtype, context.operation.op)(
          sources, std::span(&target, 1), piece.bytes(blocks.received[self], element) / element);
    }
    begin += length;
  } while (begin < longest);
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
