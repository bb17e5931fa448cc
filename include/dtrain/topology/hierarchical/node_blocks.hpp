#pragma once
/// @file
/// Two-level reduce-scatter and all-gather, inside nodes and across nodes.

#include <cstddef>

#include "dtrain/backend/message_passing/memory.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/topology/hierarchical/node_layout.hpp"
#include "dtrain/topology/partition.hpp"
#include "dtrain/topology/wire.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// For several nodes with layout.is_in_rank_order(). A reduce-scatter goes inside nodes first, a node's blocks after
/// the other's, then across them; an all-gather the other way round. Each byte crosses between nodes once. What
/// crosses, a block for each node, is in memory of the channel. Lifetime: a call.
/// @tparam Node,Across SubChannels
template <class Node, class Across>
class NodeBlocks {
 public:
  NodeBlocks(const NodeLayout& layout, Node& node, Across& across, backend::message_passing::Scratch& memory) noexcept
      : layout_(layout), node_(node), across_(across), memory_(memory) {}

  /// An average of floats is the average of the nodes' averages, unless partial results are wider than elements.
  /// @returns whether the channels still work, as all_gather()
  template <class WireType>
  bool reduce_scatter(const ConstBufferView& input, const BufferView& output, ReduceOp op, Accumulate accumulate,
                      WireReduction<WireType>& wire) {
    const kernels::PartialReduction reduction(output.dtype, op, layout_.ranks, accumulate);
    const bool apart = reduction.widens();
    const ReduceOp plain = op == ReduceOp::average && (apart || !is_float(output.dtype)) ? ReduceOp::sum : op;
    const std::size_t all = blocks_of_nodes(output.count);
    const DType type = reduction.type();
    const std::size_t wide = apart ? input.count + output.count : 0;
    const BufferView crossing{memory_.at_least((all + wide) * size_bytes(type)), all, type, {}};
    const BufferView partials = apart ? BufferView{crossing.data + crossing.bytes(), input.count, type, {}} : crossing;
    const BufferView own = apart ? BufferView{partials.data + partials.bytes(), output.count, type, {}} : output;
    if (apart) {
      reduction.begin(input.data, partials.data, input.count);
    }
    for (int other = 0; other < layout_.nodes; ++other) {
      const ConstBufferView theirs =
          view_of(apart ? ConstBufferView(partials) : input, range_of_node(output.count, other));
      const BufferView block = view_of(crossing, block_of(all, layout_.nodes, other));
      if (!node_.step([&](auto& node, auto stream) { node.reduce_scatter(theirs, block, plain, stream); })) {
        return false;
      }
    }
    const auto reduce = [&](const BufferView& sent, const BufferView& result, ReduceOp by) {
      return across_.step([&](auto& across, auto stream) { across.reduce_scatter(sent, result, by, stream); });
    };
    const bool serves = wire.reduce_scatter(crossing, own, plain, layout_.nodes, reduce);
    if (serves) {
      reduction.end(own.data, output.data, own.count);
    }
    return serves;
  }

  bool all_gather(const ConstBufferView& input, const BufferView& output) {
    const std::size_t all = blocks_of_nodes(input.count);
    const BufferView crossing{memory_.at_least(all * size_bytes(input.dtype)), all, input.dtype, {}};
    bool serves = across_.step([&](auto& across, auto stream) { across.all_gather(input, crossing, stream); });
    for (int other = 0; serves && other < layout_.nodes; ++other) {
      const BufferView theirs = view_of(output, range_of_node(input.count, other));
      const BufferView own = view_of(theirs, block_of(theirs.count, layout_.local_size, layout_.local_rank));
      copy(view_of(crossing, block_of(all, layout_.nodes, other)), own);
      serves = node_.step([&](auto& node, auto stream) { node.all_gather(own, theirs, stream); });
    }
    return serves;
  }

 private:
  /// Elements of a block for each node. @param block elements of one rank
  std::size_t blocks_of_nodes(std::size_t block) const noexcept {
    return block * static_cast<std::size_t>(layout_.nodes);
  }
  /// The blocks of a node's ranks.
  BufferRange range_of_node(std::size_t block, int node) const noexcept {
    const std::size_t count = block * static_cast<std::size_t>(layout_.local_size);
    return {count * static_cast<std::size_t>(node), count};
  }

  const NodeLayout& layout_;
  Node& node_;
  Across& across_;
  backend::message_passing::Scratch& memory_;
};

}  // namespace DTRAIN_NAMESPACE::topology
