#pragma once
/// @file
/// Functions that make and check a BlockExchange.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/backend/check_arguments.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend {

namespace detail {

/// A BlockExchange with empty blocks. @throws Error (invalid_argument) unless `root` is a rank
DTRAIN_DEFINED BlockExchange empty_blocks(OperationKind kind, int root, int size) {
  if (root < 0 || root >= size) {
    throw_error(Errc::invalid_argument, "{} with rank {} of {} as the root; ranks are counted from 0",
                {name(kind), root, size});
  }
  const auto ranks = static_cast<std::size_t>(size);
  return {kind, root, 0, std::vector<BlockRange>(ranks), std::vector<BlockRange>(ranks)};
}

/// Blocks as long as `counts`, one after the other.
DTRAIN_DEFINED void set_blocks(std::vector<BlockRange>& blocks, OperationKind kind, const char* buffer_is,
                               const ConstBufferView& buffer, Counts counts) {
  if (counts.size() != blocks.size()) {
    throw_error(Errc::invalid_argument, "{} on {} ranks was given {} counts for {}; give one for each rank",
                {name(kind), blocks.size(), counts.size(), buffer_is});
  }
  std::size_t end = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] > buffer.count - end) {
      throw_error(Errc::invalid_argument,
                  "{} with {} of {} {}, but the counts of ranks 0 to {} add up to more; their sum is its length",
                  {name(kind), buffer_is, buffer.count, name(buffer.dtype), rank});
    }
    blocks[rank] = {end, counts[rank]};
    end += counts[rank];
  }
  if (end != buffer.count) {
    throw_error(Errc::invalid_argument, "{} with {} of {} {}, but the counts add up to {}; their sum is its length",
                {name(kind), buffer_is, buffer.count, name(buffer.dtype), end});
  }
}

/// Blocks of equal length.
DTRAIN_DEFINED void set_equal_blocks(std::vector<BlockRange>& blocks, OperationKind kind, const char* buffer_is,
                                     const ConstBufferView& buffer) {
  if (buffer.count % blocks.size() != 0) {
    throw_error(Errc::invalid_argument, "{} on {} ranks with {} of {} {}; it has a block of equal length for each rank",
                {name(kind), blocks.size(), buffer_is, buffer.count, name(buffer.dtype)});
  }
  const std::vector<std::size_t> counts(blocks.size(), buffer.count / blocks.size());
  set_blocks(blocks, kind, buffer_is, buffer, counts);
}

/// @throws Error (invalid_argument) unless `block` is as long as `buffer`
DTRAIN_DEFINED void check_own_block(OperationKind kind, const char* buffer_is, const ConstBufferView& buffer,
                                    std::uint64_t count) {
  if (buffer.count != count) {
    throw_error(Errc::invalid_argument, "{} with {} of {} {}, but this rank's block has {}; give both the same length",
                {name(kind), buffer_is, buffer.count, name(buffer.dtype), count});
  }
}

DTRAIN_DEFINED void check_inside(const BlockExchange& blocks, const std::vector<BlockRange>& list,
                                 const char* buffer_is, const ConstBufferView& buffer, int size) {
  bool fits = list.size() == static_cast<std::size_t>(size);
  for (const BlockRange& block : list) {
    fits = fits && block.offset <= buffer.count && block.count <= buffer.count - block.offset;
  }
  if (!fits) {
    throw_error(Errc::invalid_argument,
                "{} on {} ranks with {} blocks of {} of {} {}; give one inside it for each rank",
                {name(blocks.kind), size, list.size(), buffer_is, buffer.count, name(buffer.dtype)});
  }
}

}  // namespace detail

DTRAIN_DEFINED Operation operation_of(const BlockExchange& blocks, DType dtype, ReduceOp op,
                                      std::uint64_t sequence) noexcept {
  Operation operation;
  operation.sequence = sequence;
  operation.kind = blocks.kind;
  operation.root = blocks.root;
  operation.count = blocks.count;
  operation.dtype = dtype;
  operation.op = op;
  return operation;
}

DTRAIN_DEFINED void check_exchange(const BlockExchange& blocks, const ConstBufferView& input,
                                   const ConstBufferView& output, int rank, int size) {
  const char* const kind = name(blocks.kind);
  if (input.dtype != output.dtype) {
    throw_error(Errc::invalid_argument, "{} of {} into {}; both buffers have the same type",
                {kind, name(input.dtype), name(output.dtype)});
  }
  detail::check_memory(kind, input);
  detail::check_memory(kind, output);
  detail::check_inside(blocks, blocks.sent, "the input", input, size);
  detail::check_inside(blocks, blocks.received, "the output", output, size);
  const auto own = static_cast<std::size_t>(rank);
  const std::size_t element = size_bytes(input.dtype);
  const bool in_place = blocks.may_be_in_place() && input.data + blocks.sent[own].offset * element ==
                                                        output.data + blocks.received[own].offset * element;
  if (!in_place && detail::overlap(input, output)) {
    throw_error(Errc::invalid_argument, "the input and output of {} overlap; give disjoint memory{}",
                {kind, blocks.may_be_in_place() ? ", or this rank's block of the longer one as the shorter" : ""});
  }
}

DTRAIN_DEFINED void check_block_reduction(const BlockExchange& blocks, const ConstBufferView& input,
                                          const ConstBufferView& output, int rank, int size) {
  check_exchange(blocks, input, output, rank, size);
  detail::check_is_reduced(name(blocks.kind), input);
}

DTRAIN_DEFINED BlockExchange blocks_of_all_to_all(const ConstBufferView& input, const ConstBufferView& output,
                                                  RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::all_to_all, 0, place.size);
  detail::set_equal_blocks(made.sent, made.kind, "an input", input);
  detail::set_equal_blocks(made.received, made.kind, "an output", output);
  made.count = made.sent[0].count;
  if (input.count != output.count) {
    throw_error(Errc::invalid_argument, "all_to_all of {} {} into {}; both buffers have the same length",
                {input.count, name(input.dtype), output.count});
  }
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_all_to_all_v(const ConstBufferView& input, Counts sent,
                                                    const ConstBufferView& output, Counts received, RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::all_to_all_v, 0, place.size);
  detail::set_blocks(made.sent, made.kind, "an input", input, sent);
  detail::set_blocks(made.received, made.kind, "an output", output, received);
  const auto own = static_cast<std::size_t>(place.rank);
  if (sent[own] != received[own]) {
    throw_error(Errc::invalid_argument,
                "all_to_all_v sends {} {} to rank {} itself and receives {}; give the same count",
                {sent[own], name(input.dtype), place.rank, received[own]});
  }
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_all_gather_v(const ConstBufferView& input, const ConstBufferView& output,
                                                    Counts counts, RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::all_gather_v, 0, place.size);
  detail::set_blocks(made.received, made.kind, "an output", output, counts);
  detail::check_own_block(made.kind, "an input", input, counts[static_cast<std::size_t>(place.rank)]);
  made.sent.assign(made.sent.size(), {0, input.count});
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_reduce_scatter_v(const ConstBufferView& input, const ConstBufferView& output,
                                                        Counts counts, RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::reduce_scatter_v, 0, place.size);
  detail::set_blocks(made.sent, made.kind, "an input", input, counts);
  detail::check_own_block(made.kind, "an output", output, counts[static_cast<std::size_t>(place.rank)]);
  made.received.assign(made.received.size(), {0, output.count});
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_gather(const ConstBufferView& input, const ConstBufferView& output, int root,
                                              RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::gather, root, place.size);
  made.count = input.count;
  made.sent[static_cast<std::size_t>(root)] = {0, input.count};
  if (place.rank == root) {
    detail::set_equal_blocks(made.received, made.kind, "an output", output);
    detail::check_own_block(made.kind, "an input", input, made.received[0].count);
  }
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_gather_v(const ConstBufferView& input, const ConstBufferView& output,
                                                Counts counts, int root, RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::gather_v, root, place.size);
  const auto own = static_cast<std::size_t>(root);
  made.sent[own] = {0, input.count};
  if (place.rank == root) {
    detail::set_blocks(made.received, made.kind, "an output", output, counts);
    detail::check_own_block(made.kind, "an input", input, counts[own]);
  }
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_scatter(const ConstBufferView& input, const ConstBufferView& output, int root,
                                               RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::scatter, root, place.size);
  made.count = output.count;
  made.received[static_cast<std::size_t>(root)] = {0, output.count};
  if (place.rank == root) {
    detail::set_equal_blocks(made.sent, made.kind, "an input", input);
    detail::check_own_block(made.kind, "an output", output, made.sent[0].count);
  }
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_scatter_v(const ConstBufferView& input, Counts counts,
                                                 const ConstBufferView& output, int root, RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::scatter_v, root, place.size);
  const auto own = static_cast<std::size_t>(root);
  made.received[own] = {0, output.count};
  if (place.rank == root) {
    detail::set_blocks(made.sent, made.kind, "an input", input, counts);
    detail::check_own_block(made.kind, "an output", output, counts[own]);
  }
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_reduce(const ConstBufferView& input, const ConstBufferView& output, int root,
                                              RankPlace place) {
  BlockExchange made = detail::empty_blocks(OperationKind::reduce, root, place.size);
  made.count = input.count;
  made.sent[static_cast<std::size_t>(root)] = {0, input.count};
  if (place.rank == root) {
    detail::check_own_block(made.kind, "an output", output, input.count);
    made.received.assign(made.received.size(), {0, input.count});
  }
  return made;
}

}  // namespace DTRAIN_NAMESPACE::backend
