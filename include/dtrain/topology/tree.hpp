#pragma once
/// @file
/// topology::Tree: binary-tree all-reduce: reduction up the tree, broadcast down the tree.

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/topology/algorithm_communicator.hpp"
#include "dtrain/topology/dual_channel.hpp"
#include "dtrain/topology/partition.hpp"
#include "dtrain/topology/sub_channel.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Rank r's parent is (r - 1) / 2; chunks are pipelined through the tree. It takes about 2 log2(n) steps, so it is for
/// small buffers on many ranks. Sanders, Speck and Traeff ("Two-tree algorithms for full bandwidth broadcast, reduction
/// and scan", 2009) balance the links with two trees. This is one tree: if links are the limit, Ring sends less.
template <class B>
class TreeReduction {
 public:
  static constexpr backend::Determinism determinism = backend::Determinism::for_a_plan;
  static constexpr std::string_view name() noexcept { return "Tree"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype); }

  /// Collective, blocking.
  TreeReduction(const backend::ChannelContext& context, Deadline deadline)
      : accumulate_(context.accumulate), channels_(context, "tree", deadline) {
    if (left() != no_rank) {
      memory_.reset(new std::byte[6 * chunk_bytes]);
    }
  }

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (channels_.size() == 1) {
      copy(input, output);
      return true;
    }
    const kernels::PartialReduction reduction(output.dtype, op, channels_.size(), accumulate_);
    const std::size_t length = chunk_bytes / size_bytes(reduction.type());
    return channels_.run(chunks_in(output.count, length), [&](SubChannel& channel, ChunkRun run) {
      return up(channel, run, input, output, reduction, length) && down(channel, run, output, length);
    });
  }

  void abort(const Cause& cause) noexcept { channels_.abort(cause); }
  std::optional<Cause> failure() const { return channels_.failure(); }

 private:
  using SubChannel = typename DualChannel<B>::SubChannel;

  int existing(int rank) const noexcept { return rank < channels_.size() ? rank : no_rank; }
  int left() const noexcept { return existing(2 * channels_.rank() + 1); }
  int right() const noexcept { return existing(2 * channels_.rank() + 2); }
  bool has_children(int rank) const noexcept { return rank != no_rank && existing(2 * rank + 1) != no_rank; }
  int parent() const noexcept { return channels_.rank() == 0 ? no_rank : (channels_.rank() - 1) / 2; }

  /// Reduction. While a rank receives one chunk from its left child, it sends the previous chunk to its parent. A rank
  /// without children sends its contribution, another rank its partial result. No deadlock: a message waits only for
  /// messages of an earlier chunk, or of the same chunk further down or further left.
  bool up(SubChannel& channel, ChunkRun run, const ConstBufferView& input, const BufferView& output,
          const kernels::PartialReduction& reduction, std::size_t length) {
    std::byte* const memory = left() == no_rank ? nullptr : memory_.get() + 3 * run.first * chunk_bytes;
    const auto buffer_of = [&](int child, std::size_t place, std::size_t count) {
      return BufferView{child == no_rank ? nullptr : memory + place * chunk_bytes,
                        count,
                        has_children(child) ? reduction.type() : output.dtype,
                        {}};
    };
    BufferRange before{};
    for (std::size_t index = run.first; index < chunks_in(output.count, length) + run.stride; index += run.stride) {
      const BufferRange now = chunk_of({0, output.count}, length, index);
      const BufferView first = buffer_of(left(), 0, now.count);
      const BufferView second = buffer_of(right(), 1, now.count);
      const BufferView partial{
          left() == no_rank ? nullptr : memory + 2 * chunk_bytes, before.count, reduction.type(), {}};
      if (!channel.exchange(left() == no_rank ? view_of(input, before) : partial, parent(), first, left()) ||
          !channel.recv(second, right())) {
        return false;
      }
      if (left() != no_rank) {
        const bool ends = parent() == no_rank;
        const std::array<kernels::PartialReduction::Operand, 3> sources{{{view_of(input, now).data, false},
                                                                         {first.data, has_children(left())},
                                                                         {second.data, has_children(right())}}};
        reduction(std::span(sources).first(right() == no_rank ? 2 : 3), ends ? view_of(output, now).data : partial.data,
                  now.count, ends);
      }
      before = now;
    }
    return true;
  }

  bool down(SubChannel& channel, ChunkRun run, const BufferView& output, std::size_t length) {
    BufferRange before{};
    for (std::size_t index = run.first; index < chunks_in(output.count, length) + run.stride; index += run.stride) {
      const BufferRange now = chunk_of({0, output.count}, length, index);
      if (!channel.exchange(view_of(output, before), left(), view_of(output, now), parent()) ||
          !channel.send(view_of(output, before), right())) {
        return false;
      }
      before = now;
    }
    return true;
  }

  Accumulate accumulate_;
  std::unique_ptr<std::byte[]> memory_;  ///< for each channel one chunk of each child, and one for the parent
  DualChannel<B> channels_;
};

/// Names TreeReduction in a policy.
struct Tree {
  static constexpr std::string_view name() noexcept { return "Tree"; }

  template <class B>
  static constexpr bool supports_backend = HasPointToPoint<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(supports_backend<B>,
                  "dtrain: topology::Tree needs a backend with send and recv on host streams "
                  "(CanSendRecv in dtrain/backend/communicator.hpp)");
  }

  template <class B>
  using Rebind = AlgorithmBackend<B, TreeReduction<B>>;
};

static_assert(Topology<Tree>);

}  // namespace DTRAIN_NAMESPACE::topology
