#pragma once
/// @file
/// BlockExchange: the blocks that a rank sends to each rank and receives from each.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
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
  std::uint64_t count = 0;       ///< of each block, equal on every rank; 0 if has_unequal_blocks(kind)
  std::vector<BlockRange> sent;  ///< blocks of the input, one for each rank
  std::vector<BlockRange>
      received;  ///< disjoint blocks of the output, one from each rank; of a reduction all the same one

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
};

constexpr bool is_reduction(OperationKind kind) noexcept {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter_v;
}

/// The descriptor that ranks compare.
Operation operation_of(const BlockExchange& blocks, DType dtype, ReduceOp op, std::uint64_t sequence) noexcept;

/// For backends. @throws Error (invalid_argument) unless the lists have `size` blocks inside the buffers, both buffers
/// have one type, and the memory is valid and as CanExchangeBlocks requires.
void check_exchange(const BlockExchange& blocks, const ConstBufferView& input, const ConstBufferView& output, int rank,
                    int size);

/// The same for a reduction. @throws Error (unsupported) for 8-bit floats too
void check_block_reduction(const BlockExchange& blocks, const ConstBufferView& input, const ConstBufferView& output,
                           int rank, int size);

/// A list of counts, one for each rank, in elements.
using Counts = std::span<const std::size_t>;

/// A rank's place in its group.
struct RankPlace {
  int rank;
  int size;
};

/// @name The blocks of each collective
/// In the order of the ranks and without gaps; all of equal length without counts. The unused buffer of a gather,
/// scatter or reduce is ignored, and so are the counts of a rank that is not the root.
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

}  // namespace DTRAIN_NAMESPACE::backend

#if DTRAIN_DEFINITIONS
#include "dtrain/backend/exchange/block_exchange_definitions.hpp"
#endif
