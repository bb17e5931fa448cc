#pragma once
/// @file
/// topology::Hierarchical: two-level all-reduce, inside nodes and across nodes.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/message_passing/memory.hpp"
#include "dtrain/backend/on_host_streams.hpp"
#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/topology/algorithm_communicator.hpp"
#include "dtrain/topology/node_layout.hpp"
#include "dtrain/topology/parallel_runner.hpp"
#include "dtrain/topology/partition.hpp"
#include "dtrain/topology/sub_channel.hpp"
#include "dtrain/topology/topology.hpp"
#include "dtrain/topology/wire.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// `B` is the backend across nodes, `Intra` the backend inside a node. Steps:
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
/// are wider than elements. Then each rank first makes a partial result of its contribution
/// (kernels::PartialReduction).
///
/// `WireType`: wire::Bf16 or wire::F16 sends sums and averages of f32 in 16 bits in step 2. Each node's partial result
/// is an f32 sum, rounded once before it is sent; the backend rounds what it adds up across nodes. Source: Ueno and
/// Yokota, "Exhaustive study of hierarchical AllReduce patterns for large messages between GPUs", 2019.
template <class B, class Intra, class WireType = wire::Same>
class HierarchicalReduction {
 public:
  using Allocation = typename Intra::Communicator::Allocation;
  static constexpr backend::Determinism determinism =
      std::min({backend::Determinism::for_a_plan, backend::determinism_of<B>, backend::determinism_of<Intra>});
  static constexpr std::string_view name() noexcept { return "Hierarchical"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype) && Intra::reduces(dtype); }

  /// Collective, blocking.
  HierarchicalReduction(const backend::ChannelContext& context, Deadline deadline)
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

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (layout_.nodes == 1) {
      return node_.step([&](auto& node, auto stream) { node.all_reduce(input, output, op, stream); });
    }
    if (layout_.ranks == layout_.nodes) {
      if (wire_.casts(output.dtype, op)) {
        copy(input, output);
        return all_reduce_across(output, op);
      }
      return across_->step([&](auto& across, auto stream) { across.all_reduce(input, output, op, stream); });
    }
    return in_segments(input, output, op);
  }

  void abort(const Cause& cause) noexcept {
    node_.abort(cause);
    if (across_) {
      across_->abort(cause);
    }
  }

  std::optional<Cause> failure() const {
    std::optional<Cause> cause = across_ ? across_->failure() : std::nullopt;
    return cause ? cause : node_.failure();
  }

  /// Of the reductions across nodes.
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

  /// Bytes of a segment for each cross-node group: the fixed cost of a reduction across nodes is then negligible.
  static constexpr std::size_t group_segment_bytes = std::size_t{8} << 20;

  /// Whether all nodes have the same number of ranks.
  bool is_uniform() const noexcept { return layout_.ranks == layout_.cross_node_groups * layout_.nodes; }

  bool in_segments(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    const kernels::PartialReduction reduction(output.dtype, op, layout_.ranks, accumulate_);
    const bool averages = op == ReduceOp::average;
    const bool of_averages = averages && is_float(output.dtype) && is_uniform() && !reduction.widens();
    const bool apart = reduction.widens();
    const bool scaled = apart || (averages && is_float(output.dtype) && !is_uniform());
    const ReduceOp plain = averages && !of_averages ? ReduceOp::sum : op;
    const DType type = reduction.type();
    const std::size_t length =
        group_segment_bytes / size_bytes(type) * static_cast<std::size_t>(layout_.cross_node_groups);
    const std::size_t segments = std::max<std::size_t>(1, chunks_in(output.count, length));
    const std::size_t room = apart ? std::min(output.count, length) * size_bytes(type) : 0;
    std::byte* const memory = partials_.at_least(2 * room);
    const auto segment = [&](std::size_t index) { return chunk_of({0, output.count}, length, index); };
    const auto partials = [&](std::size_t index) {
      return apart ? BufferView{memory + index % 2 * room, segment(index).count, type, {}}
                   : view_of(output, segment(index));
    };
    const auto reduce = [&](std::size_t index) {
      if (index == segments) {
        return true;
      }
      const ConstBufferView own = view_of(input, segment(index));
      if (scaled) {
        reduction.begin(own.data, partials(index).data, own.count);
      }
      return reduce_in_node(scaled ? partials(index) : own, partials(index), plain);
    };
    bool serves = reduce(0);
    for (std::size_t index = 0; serves && index < segments; ++index) {
      const auto across = [&] {
        return reduce_across(partials(index), view_of(output, segment(index)), reduction, plain);
      };
      const auto inside = [&] {
        return (index == 0 || all_gather_in_node(view_of(output, segment(index - 1)))) && reduce(index + 1);
      };
      serves = segments > 1 && runner_ ? runner_->run_both(inside, across, [&](const Cause& cause) { abort(cause); })
                                       : across() && inside();
    }
    return serves && all_gather_in_node(view_of(output, segment(segments - 1)));
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
        node.reduce_scatter(view_of(input, scattered), view_of(output, block(output, layout_.local_rank)), op, stream);
      }
      if (reduced.count != 0) {
        node.all_reduce(view_of(input, reduced), view_of(output, reduced), op, stream);
      }
    });
  }

  /// Reduces this rank's range of the nodes' partial results across nodes.
  bool reduce_across(const BufferView& partials, const BufferView& output, const kernels::PartialReduction& reduction,
                     ReduceOp op) {
    const BufferView own = across_ ? view_of(partials, owned_range(partials, layout_.local_rank)) : BufferView{};
    if (own.count == 0) {
      return true;
    }
    const bool serves = all_reduce_across(own, op);
    if (serves) {
      reduction.end(own.data, view_of(output, owned_range(output, layout_.local_rank)).data, own.count);
    }
    return serves;
  }

  /// In place.
  bool all_reduce_across(const BufferView& own, ReduceOp op) {
    return wire_.all_reduce(own, op, layout_.nodes, [&](const BufferView& sent, ReduceOp by) {
      return across_->step([&](auto& across, auto stream) { across.all_reduce(sent, sent, by, stream); });
    });
  }

  bool all_gather_in_node(const BufferView& output) {
    if (layout_.local_size == 1) {
      return true;
    }
    return node_.step([&](auto& node, auto stream) {
      if (layout_.is_even() && blocks(output).count != 0) {
        node.all_gather(view_of(output, block(output, layout_.local_rank)), view_of(output, blocks(output)), stream);
      }
      for (int group = 0; group < layout_.cross_node_groups; ++group) {
        const BufferRange shared = !layout_.is_even()                       ? owned_range(output, group)
                                   : group + 1 == layout_.cross_node_groups ? rest(output)
                                                                            : BufferRange{};
        if (shared.count != 0) {
          node.broadcast(view_of(output, shared), group, stream);
        }
      }
    });
  }

  Accumulate accumulate_;
  NodeLayout layout_;
  WireReduction<WireType> wire_;
  backend::message_passing::Scratch partials_;  ///< of two segments, if they are wider than the output's elements
  SubChannel<typename Intra::Communicator> node_;
  std::optional<SubChannel<typename B::Communicator>> across_;
  std::optional<ParallelRunner> runner_;  ///< if this rank works both inside and across nodes; destroyed first
};

/// A backend that Hierarchical can use inside nodes.
template <class I>
concept ReducesInNodes = backend::OnHostStreams<I> && backend::CanReduceScatter<typename I::Communicator> &&
    backend::CanAllGather<typename I::Communicator>;

/// `IntraBackend`: backend inside a node, such as backend::SharedMemory; void: the policy's backend.
/// `WireType`: the type of f32 elements between nodes (wire.hpp).
template <class IntraBackend = void, class WireType = wire::Same>
struct Hierarchical {
  static constexpr std::string_view name() noexcept { return "Hierarchical"; }

  template <class B>
  using Intra = std::conditional_t<std::is_void_v<IntraBackend>, B, IntraBackend>;

  template <class B>
  static constexpr bool supports_backend = backend::OnHostStreams<B>&& ReducesInNodes<Intra<B>>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(backend::OnHostStreams<B>,
                  "dtrain: topology::Hierarchical needs a backend on host streams "
                  "(backend::OnHostStreams in dtrain/backend/on_host_streams.hpp)");
    static_assert(!backend::OnHostStreams<B> || ReducesInNodes<Intra<B>>,
                  "dtrain: topology::Hierarchical needs a backend with reduce_scatter and all_gather on host streams "
                  "inside the nodes: give one, as in Hierarchical<backend::SharedMemory> "
                  "(CanReduceScatter, CanAllGather in dtrain/backend/communicator.hpp)");
  }

  template <class B>
  using Rebind = AlgorithmBackend<B, HierarchicalReduction<B, Intra<B>, WireType>>;
};

static_assert(Topology<Hierarchical<>>);

}  // namespace DTRAIN_NAMESPACE::topology
