#pragma once
/// @file
/// BlockExchange: the blocks of any lengths that a rank sends to and receives from each rank. BlockPieces: their
/// chunks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A range of a buffer, in elements.
struct BlockRange {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

/// Arguments of the collectives with a block for each pair of ranks. Gathers and scatters are exchanges in which most
/// blocks are empty. Between ranks, block r that rank s sends is as long as block s that rank r receives.
struct BlockExchange {
  OperationKind kind = OperationKind::all_to_all_v;
  std::int32_t root = 0;
  std::uint64_t count = 0;       ///< elements of each block, equal on every rank; 0 if has_unequal_blocks(kind)
  std::vector<BlockRange> sent;  ///< blocks of the input, one for each rank
  std::vector<BlockRange>
      received;  ///< disjoint blocks of the output, one from each rank; in a reduction all are the same block

  bool goes_to_root() const noexcept {
    return kind == OperationKind::gather || kind == OperationKind::gather_v || kind == OperationKind::reduce;
  }
  bool comes_from_root() const noexcept { return kind == OperationKind::scatter || kind == OperationKind::scatter_v; }
  bool may_be_in_place() const noexcept {
    return kind != OperationKind::all_to_all && kind != OperationKind::all_to_all_v;
  }

  /// Whether the operation has a block from rank `sender` to rank `receiver`, which may be empty.
  bool connects(int sender, int receiver) const noexcept {
    return (!goes_to_root() || receiver == root) && (!comes_from_root() || sender == root);
  }

  /// The descriptor that ranks compare, without its sequence.
  Operation describe(DType dtype, ReduceOp op) const noexcept {
    return {.count = count, .root = root, .kind = kind, .dtype = dtype, .op = op};
  }
};

constexpr bool is_reduction(OperationKind kind) noexcept {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter_v;
}

/// A list of counts, one for each rank, in elements.
using Counts = std::span<const std::size_t>;

/// A rank's place in its group.
struct RankPlace {
  int rank;
  int size;
};

/// @name The blocks of each collective
/// Blocks stand in the order of the ranks without gaps; without counts, all have one length. The unused buffer of a
/// gather, scatter or reduce is ignored, and so are the counts of a rank that is not the root.
/// @throws Error (invalid_argument) if counts, lengths or the root do not fit
/// @{
BlockExchange blocks_of_all_to_all(const ConstBufferView& input, const std::optional<Counts>& sent,
                                   const ConstBufferView& output, const std::optional<Counts>& received,
                                   RankPlace place);
BlockExchange blocks_of_all_gather_v(const ConstBufferView& input, const ConstBufferView& output, Counts counts,
                                     RankPlace place);
BlockExchange blocks_of_reduce_scatter_v(const ConstBufferView& input, const ConstBufferView& output, Counts counts,
                                         RankPlace place);
BlockExchange blocks_of_gather(const ConstBufferView& input, const ConstBufferView& output,
                               const std::optional<Counts>& counts, int root, RankPlace place);
BlockExchange blocks_of_scatter(const ConstBufferView& input, const std::optional<Counts>& counts,
                                const ConstBufferView& output, int root, RankPlace place);
BlockExchange blocks_of_reduce(const ConstBufferView& input, const ConstBufferView& output, int root, RankPlace place);
/// @}

/// Piece `piece` of `pieces` of a block of `count` elements, which differ by at most one; `offset` from the block's
/// beginning.
constexpr BlockRange piece_of(std::uint64_t count, std::uint64_t piece, std::uint64_t pieces) noexcept {
  const auto begin = [&](std::uint64_t of) { return count / pieces * of + count % pieces * of / pieces; };
  return {begin(piece), begin(piece + 1) - begin(piece)};
}

/// Each chunk has the same share of every block, so that all ranks reduce at once. Equal on every rank, since the
/// blocks of a reduction are. Lifetime: the blocks outlive it.
class BlockPieces {
 public:
  /// @param room elements that fit in a chunk; above the number of blocks
  BlockPieces(const BlockExchange& blocks, std::uint64_t room) noexcept : blocks_(blocks) {
    for (const BlockRange& block : blocks.sent) {
      elements_ += block.count;
    }
    const std::uint64_t most = room - blocks.sent.size();  // each piece may be rounded up
    chunks_ = std::max<std::uint64_t>(1, (elements_ + most - 1) / most);
  }

  std::uint64_t elements() const noexcept { return elements_; }  ///< sum over all blocks
  std::uint64_t chunks() const noexcept { return chunks_; }      ///< number of chunks, at least 1

  /// The piece of the block of `rank`; `offset` from the beginning of the block.
  BlockRange piece(std::size_t rank, std::uint64_t chunk) const noexcept {
    return piece_of(blocks_.sent[rank].count, chunk, chunks_);
  }

 private:
  const BlockExchange& blocks_;
  std::uint64_t elements_ = 0;
  std::uint64_t chunks_ = 1;
};

#if DTRAIN_DEFINITIONS

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

/// Blocks one after the other, as long as `counts` or, without them, equally long.
DTRAIN_DEFINED void set_blocks(std::vector<BlockRange>& blocks, OperationKind kind, const char* buffer_is,
                               const ConstBufferView& buffer, const std::optional<Counts>& counts) {
  if (counts ? counts->size() != blocks.size() : buffer.count % blocks.size() != 0) {
    throw_error(Errc::invalid_argument, "{} on {} ranks with {} of {} {}{}; it has {} for each rank",
                {name(kind), blocks.size(), buffer_is, buffer.count, name(buffer.dtype),
                 counts ? format_text(" and {} counts", {counts->size()}) : "",
                 counts ? "a block with a count" : "a block of equal length"});
  }
  std::size_t end = 0;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    const std::size_t count = counts ? (*counts)[rank] : buffer.count / blocks.size();
    const bool is_last = rank + 1 == blocks.size();
    if (count > buffer.count - end || (is_last && count != buffer.count - end)) {
      throw_error(Errc::invalid_argument,
                  "{} with {} of {} {}, but the counts of ranks 0 to {} add up to {}; the sum of all is its length",
                  {name(kind), buffer_is, buffer.count, name(buffer.dtype), rank,
                   count > buffer.count - end ? "more" : format_text("{}", {end + count})});
    }
    blocks[rank] = {end, count};
    end += count;
  }
}

/// @throws Error (invalid_argument) unless `buffer` has `count` elements
DTRAIN_DEFINED void check_own_block(OperationKind kind, const char* buffer_is, const ConstBufferView& buffer,
                                    std::uint64_t count) {
  if (buffer.count != count) {
    throw_error(Errc::invalid_argument, "{} with {} of {} {}, but this rank's block has {}; give both the same length",
                {name(kind), buffer_is, buffer.count, name(buffer.dtype), count});
  }
}

struct NamedBlocks {
  const char* buffer_is;
  const ConstBufferView& buffer;
  std::vector<BlockRange>& blocks;
};

/// @param part each rank's buffer @param whole the root's buffer, with one block for each rank
DTRAIN_DEFINED void set_root_blocks(const BlockExchange& made, const NamedBlocks& part, const NamedBlocks& whole,
                                    const std::optional<Counts>& counts, RankPlace place) {
  const auto root = static_cast<std::size_t>(made.root);
  part.blocks[root] = {0, part.buffer.count};
  if (place.rank == made.root) {
    set_blocks(whole.blocks, made.kind, whole.buffer_is, whole.buffer, counts);
    check_own_block(made.kind, part.buffer_is, part.buffer, whole.blocks[root].count);
  }
}

}  // namespace detail

DTRAIN_DEFINED BlockExchange blocks_of_all_to_all(const ConstBufferView& input, const std::optional<Counts>& sent,
                                                  const ConstBufferView& output, const std::optional<Counts>& received,
                                                  RankPlace place) {
  BlockExchange made =
      detail::empty_blocks(sent ? OperationKind::all_to_all_v : OperationKind::all_to_all, 0, place.size);
  detail::set_blocks(made.sent, made.kind, "an input", input, sent);
  detail::set_blocks(made.received, made.kind, "an output", output, received);
  const auto own = static_cast<std::size_t>(place.rank);
  made.count = sent ? 0 : made.sent[own].count;
  if (made.sent[own].count != made.received[own].count) {
    throw_error(Errc::invalid_argument, "{} sends {} {} to rank {} itself and receives {}; give the same count",
                {name(made.kind), made.sent[own].count, name(input.dtype), place.rank, made.received[own].count});
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

DTRAIN_DEFINED BlockExchange blocks_of_gather(const ConstBufferView& input, const ConstBufferView& output,
                                              const std::optional<Counts>& counts, int root, RankPlace place) {
  BlockExchange made = detail::empty_blocks(counts ? OperationKind::gather_v : OperationKind::gather, root, place.size);
  made.count = counts ? 0 : input.count;
  detail::set_root_blocks(made, {"an input", input, made.sent}, {"an output", output, made.received}, counts, place);
  return made;
}

DTRAIN_DEFINED BlockExchange blocks_of_scatter(const ConstBufferView& input, const std::optional<Counts>& counts,
                                               const ConstBufferView& output, int root, RankPlace place) {
  BlockExchange made =
      detail::empty_blocks(counts ? OperationKind::scatter_v : OperationKind::scatter, root, place.size);
  made.count = counts ? 0 : output.count;
  detail::set_root_blocks(made, {"an output", output, made.received}, {"an input", input, made.sent}, counts, place);
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

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
