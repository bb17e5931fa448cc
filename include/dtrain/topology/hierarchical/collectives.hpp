#pragma once
/// @file
/// HierarchicalCollectives: two-level collectives, inside nodes and across nodes, where all_reduce may send another
/// type.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/topology/algorithm_communicator.hpp"
#include "dtrain/topology/hierarchical/node_layout.hpp"
#include "dtrain/topology/sub_channel.hpp"
#include "dtrain/topology/wire.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Variants that differ in results or traffic with this layout. One node has a single variant; with one rank on each
/// node, the backend's own variant is Hierarchical without a wire type. @param wire type of f32 elements between nodes:
/// f32, bf16 or f16
std::span<const AllReduceVariant> hierarchical_variants(const NodeLayout& layout, DType wire) noexcept;

/// For several nodes with layout.is_in_rank_order(). A reduce-scatter runs inside nodes first, one node's blocks after
/// another's, then across nodes; an all-gather runs in the reverse order. Each byte crosses between nodes once. The
/// blocks that cross, one for each node, are in memory of the channel. Lifetime: a call.
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
      if (!node_.run(backend::ReduceScatter{theirs, block, plain})) {
        return false;
      }
    }
    const auto reduce = [&](const BufferView& sent, const BufferView& result, ReduceOp by) {
      return across_.run(backend::ReduceScatter{sent, result, by});
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
    bool serves = across_.run(backend::AllGather{input, crossing});
    for (int other = 0; serves && other < layout_.nodes; ++other) {
      const BufferView theirs = view_of(output, range_of_node(input.count, other));
      const BufferView own = view_of(theirs, block_of(theirs.count, layout_.local_size, layout_.local_rank));
      copy(view_of(crossing, block_of(all, layout_.nodes, other)), own);
      serves = node_.run(backend::AllGather{own, theirs});
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

/// `B` is the backend across nodes, `Intra` the backend inside a node. Steps of an all_reduce:
///   1. reduce-scatter inside each node: one block for each local rank
///   2. all-reduce of a block among the ranks with the same local rank, across nodes
///   3. all-gather inside each node
/// In step 2, all ranks of a node use its link at the same time, and each byte crosses between nodes once.
///
/// A large buffer is divided into segments. Segments are pipelined: while segment k crosses nodes, segment k-1 is
/// all-gathered and k+1 reduce-scattered inside nodes.
///
/// Nodes may have different numbers of ranks. There is one block, and one cross-node group, for each rank of the
/// smallest node. In a larger node, step 1 is an all-reduce of the whole buffer; in step 3, each rank that has a
/// cross-node group broadcasts its block.
///
/// An average of floats is the average of the nodes' averages, unless nodes have different sizes or partial results
/// are wider than elements. In these cases each rank first makes a partial result of its contribution
/// (kernels::PartialReduction).
///
/// A broadcast goes through the ranks of the root's node, of which each sends its block to the other nodes; each byte
/// crosses to each node once.
///
/// `WireType`: wire::Bf16 or wire::F16 sends sums and averages of f32 in 16 bits across nodes. Each node's partial
/// result is an f32 sum, rounded once before it is sent; the backend rounds its sums across nodes. Source: Ueno and
/// Yokota, "Exhaustive study of hierarchical AllReduce patterns for large messages between GPUs", 2019.
template <class B, class Intra, class WireType = wire::Same>
class HierarchicalCollectives {
 public:
  using Allocation = typename Intra::Communicator::Allocation;
  static constexpr backend::Determinism determinism =
      std::min({backend::Determinism::for_a_plan, backend::determinism_of<B>, backend::determinism_of<Intra>});
  static constexpr std::string_view name() noexcept { return "Hierarchical"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype) && Intra::reduces(dtype); }

  /// Collective, blocking.
  HierarchicalCollectives(const backend::ChannelContext& context, Deadline deadline)
      : accumulate_(context.accumulate),
        layout_(exchange_node_layout(context, deadline)),
        node_(Intra::open_blocking(inside_node(context, layout_), deadline)) {
    if (layout_.nodes > 1 && layout_.has_cross_node_group()) {
      across_.emplace(B::open_blocking(across_nodes(context, layout_), deadline));
      if (layout_.ranks > layout_.nodes) {
        runner_.emplace();
      }
    }
  }

  /// Collective, blocking. Allocates memory that `Intra` reduces without a copy.
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    return node_.communicator().allocate_blocking(bytes, deadline);
  }

  std::span<const AllReduceVariant> variants() const noexcept {
    return hierarchical_variants(layout_, WireType::dtype);
  }

  bool run(const backend::AllReduce& call, bool casts) {
    if (layout_.nodes == 1) {
      return node_.run(call);
    }
    if (layout_.ranks == layout_.nodes) {
      if (casts && wire_.casts(call.output.dtype, call.op)) {
        copy(call.input, call.output);
        return all_reduce_across(call.output, call.op, casts);
      }
      return across_->run(call);
    }
    return reduce_in_segments(call.input, call.output, call.op, casts);
  }

  /// Whether a ReduceScatter and an AllGather go by nodes: all nodes have equally many ranks, with successive blocks.
  bool scatters() const noexcept { return layout_.local_size > 1 && layout_.is_in_rank_order(); }

  /// @pre scatters()
  bool run(const backend::ReduceScatter& call) {
    return layout_.nodes == 1 ? node_.run(call)
                              : node_blocks().reduce_scatter(call.input, call.output, call.op, accumulate_, wire_);
  }

  /// @pre scatters()
  bool run(const backend::AllGather& call) {
    return layout_.nodes == 1 ? node_.run(call) : node_blocks().all_gather(call.input, call.output);
  }

  bool run(const backend::Broadcast& call) {
    const BufferView& buffer = call.buffer;
    const NodeLayout::Place from = layout_.places[static_cast<std::size_t>(call.root)];
    if (layout_.nodes == 1) {
      return node_.run(call);
    }
    if (layout_.ranks == layout_.nodes) {
      return across_->run(call);
    }
    const bool has_values = layout_.node == from.node;
    const std::size_t length = segment_length(buffer.dtype);
    const auto segment = [&](std::size_t index) { return view_of(buffer, chunk_of({0, buffer.count}, length, index)); };
    const auto in_node = [&](std::size_t index) {
      return !has_values || node_.run(backend::Broadcast{segment(index), from.local_rank});
    };
    const auto across = [&](std::size_t index) {
      const BufferView own =
          across_ ? view_of(segment(index), owned_range(segment(index), layout_.local_rank)) : BufferView{};
      return !across_ || across_->run(backend::Broadcast{own, from.node});
    };
    const auto gather = [&](std::size_t index) { return has_values || all_gather_in_node(segment(index)); };
    return in_segments(segments_of(buffer.count, length), in_node, across, gather);
  }

  /// Two barriers in each node; between the two, the ranks of each cross-node group run a barrier.
  bool run(const backend::Barrier& call) {
    return node_.run(call) && (layout_.nodes == 1 || ((!across_ || across_->run(call)) && node_.run(call)));
  }

  void abort(const Cause& cause) noexcept {
    node_.abort(cause);
    if (across_) across_->abort(cause);
  }

  std::optional<Cause> failure() const {
    std::optional<Cause> cause = across_ ? across_->failure() : std::nullopt;
    return cause ? cause : node_.failure();
  }

  /// Traffic of the reductions across nodes.
  CompressedTraffic compressed_traffic() const noexcept requires narrows<WireType> { return wire_.traffic(); }

 private:
  /// All cross-node groups have equal blocks. The last group also has the remainder, rest().
  BufferRange blocks(const BufferView& whole) const noexcept { return {0, whole.count - rest(whole).count}; }
  BufferRange rest(const BufferView& whole) const noexcept {
    const std::size_t left_over = whole.count % static_cast<std::size_t>(layout_.cross_node_groups);
    return {whole.count - left_over, left_over};
  }
  BufferRange block(const BufferView& whole, int group) const noexcept {
    return block_of(blocks(whole).count, layout_.cross_node_groups, group);
  }
  BufferRange owned_range(const BufferView& whole, int group) const noexcept {
    BufferRange own = block(whole, group);
    own.count += group + 1 == layout_.cross_node_groups ? rest(whole).count : 0;
    return own;
  }

  /// Bytes of a segment for each cross-node group: large enough that the fixed cost of a reduction across nodes is
  /// negligible.
  static constexpr std::size_t group_segment_bytes = std::size_t{8} << 20;

  auto node_blocks() noexcept { return NodeBlocks{layout_, node_, *across_, partials_}; }

  std::size_t segment_length(DType type) const noexcept {
    return group_segment_bytes / size_bytes(type) * static_cast<std::size_t>(layout_.cross_node_groups);
  }
  static std::size_t segments_of(std::size_t count, std::size_t length) noexcept {
    return std::max<std::size_t>(1, chunks_in(count, length));
  }

  /// For each segment in order `before(index)` inside the node, `across(index)`, then `after(index)` inside the node.
  /// While segment k is in across, segment k - 1 is in after and then k + 1 in before.
  /// @returns false once one of them returned false
  template <class Before, class Across, class After>
  bool in_segments(std::size_t segments, Before before, Across across, After after) {
    bool serves = before(0);
    for (std::size_t index = 0; serves && index < segments; ++index) {
      const auto crossing = [&] { return across(index); };
      const auto inside = [&] {
        return (index == 0 || after(index - 1)) && (index + 1 == segments || before(index + 1));
      };
      serves = segments > 1 && runner_ ? runner_->run_both(inside, crossing, [&](const Cause& cause) { abort(cause); })
                                       : crossing() && inside();
    }
    return serves && after(segments - 1);
  }

  bool reduce_in_segments(const ConstBufferView& input, const BufferView& output, ReduceOp op, bool casts) {
    const kernels::PartialReduction reduction(output.dtype, op, layout_.ranks, accumulate_);
    const bool averages = op == ReduceOp::average;
    const bool of_averages = averages && is_float(output.dtype) && layout_.is_uniform() && !reduction.widens();
    const bool apart = reduction.widens();
    const bool scaled = apart || (averages && is_float(output.dtype) && !layout_.is_uniform());
    const ReduceOp plain = averages && !of_averages ? ReduceOp::sum : op;
    const DType type = reduction.type();
    const std::size_t length = segment_length(type);
    const std::size_t room = apart ? std::min(output.count, length) * size_bytes(type) : 0;
    std::byte* const memory = partials_.at_least(2 * room);
    const auto segment = [&](std::size_t index) { return chunk_of({0, output.count}, length, index); };
    const auto partials = [&](std::size_t index) {
      return apart ? BufferView{memory + index % 2 * room, segment(index).count, type, {}}
                   : view_of(output, segment(index));
    };
    const auto reduce = [&](std::size_t index) {
      const ConstBufferView own = view_of(input, segment(index));
      if (scaled) {
        reduction.begin(own.data, partials(index).data, own.count);
      }
      return reduce_in_node(scaled ? partials(index) : own, partials(index), plain);
    };
    const auto across = [&](std::size_t index) {
      return reduce_across(partials(index), view_of(output, segment(index)), reduction, plain, casts);
    };
    const auto gather = [&](std::size_t index) { return all_gather_in_node(view_of(output, segment(index))); };
    return in_segments(segments_of(output.count, length), reduce, across, gather);
  }

  bool reduce_in_node(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (layout_.local_size == 1) {
      copy(input, output);
      return true;
    }
    const BufferRange scattered = layout_.is_even() ? blocks(output) : BufferRange{};
    const BufferRange reduced = layout_.is_even() ? rest(output) : BufferRange{0, output.count};
    return node_.step([&](auto& node, auto stream) {
      if (scattered.count != 0) {
        const BufferView own = view_of(output, block(output, layout_.local_rank));
        node.enqueue(backend::ReduceScatter{view_of(input, scattered), own, op}, stream);
      }
      if (reduced.count != 0) {
        node.enqueue(backend::AllReduce{view_of(input, reduced), view_of(output, reduced), op}, stream);
      }
    });
  }

  /// Reduces this rank's range of the nodes' partial results across nodes.
  bool reduce_across(const BufferView& partials, const BufferView& output, const kernels::PartialReduction& reduction,
                     ReduceOp op, bool casts) {
    const BufferView own = across_ ? view_of(partials, owned_range(partials, layout_.local_rank)) : BufferView{};
    if (own.count == 0) {
      return true;
    }
    const bool serves = all_reduce_across(own, op, casts);
    if (serves) {
      reduction.end(own.data, view_of(output, owned_range(output, layout_.local_rank)).data, own.count);
    }
    return serves;
  }

  /// Reduces `own` in place across nodes.
  bool all_reduce_across(const BufferView& own, ReduceOp op, bool casts) {
    const auto reduce = [&](const BufferView& sent, ReduceOp by) {
      return across_->run(backend::AllReduce{sent, sent, by});
    };
    return wire_.all_reduce(own, op, layout_.nodes, reduce, casts);
  }

  bool all_gather_in_node(const BufferView& output) {
    if (layout_.local_size == 1) {
      return true;
    }
    return node_.step([&](auto& node, auto stream) {
      if (layout_.is_even() && blocks(output).count != 0) {
        const BufferView own = view_of(output, block(output, layout_.local_rank));
        node.enqueue(backend::AllGather{own, view_of(output, blocks(output))}, stream);
      }
      for (int group = 0; group < layout_.cross_node_groups; ++group) {
        const BufferRange shared = !layout_.is_even()                       ? owned_range(output, group)
                                   : group + 1 == layout_.cross_node_groups ? rest(output)
                                                                            : BufferRange{};
        if (shared.count != 0) {
          node.enqueue(backend::Broadcast{view_of(output, shared), group}, stream);
        }
      }
    });
  }

  Accumulate accumulate_;
  NodeLayout layout_;
  WireReduction<WireType> wire_;
  backend::message_passing::Scratch partials_;  ///< wider than the output's elements; blocks of NodeBlocks
  SubChannel<typename Intra::Communicator> node_;
  std::optional<SubChannel<typename B::Communicator>> across_;
  std::optional<ParallelRunner> runner_;  ///< if this rank works both inside and across nodes; destroyed first
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::span<const AllReduceVariant> hierarchical_variants(const NodeLayout& layout, DType wire) noexcept {
  static constexpr AllReduceVariant in_f32{"Hierarchical in f32", true, false};
  static constexpr AllReduceVariant flat{"Flat", false, false};
  static constexpr AllReduceVariant plain[] = {{"Hierarchical"}, flat};
  static constexpr AllReduceVariant with_bf16[] = {{"Hierarchical in bf16"}, in_f32, flat};
  static constexpr AllReduceVariant with_f16[] = {{"Hierarchical in f16"}, in_f32, flat};
  const bool is_flat = layout.ranks == layout.nodes;  // the backend's own variant, apart from the wire type
  if (layout.nodes == 1 || (is_flat && wire == DType::f32)) return {};
  if (wire == DType::f32) return plain;
  const std::span<const AllReduceVariant> all = wire == DType::bf16 ? with_bf16 : with_f16;
  return is_flat ? all.first(2) : all;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::topology
