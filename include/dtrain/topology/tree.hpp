#pragma once
/// @file
/// topology::Tree: up a binary tree and down again, in as many steps as it is high.

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/topology/lane.hpp"
#include "dtrain/topology/parts.hpp"
#include "dtrain/topology/routed.hpp"
#include "dtrain/topology/topology.hpp"
#include "dtrain/topology/two_lanes.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Rank r's parent is (r - 1) / 2; pieces follow each other through the tree. About 2 log2(n) steps, so it is for small
/// buffers on many ranks. One tree and not the two of Sanders, Speck and Traeff ("Two-tree algorithms for full
/// bandwidth broadcast, reduction and scan", 2009), which balance the links: where these are the limit, Ring sends
/// less.
template <class B>
class TreeReduction {
 public:
  static constexpr backend::Determinism determinism = backend::Determinism::for_a_plan;
  static constexpr std::string_view name() noexcept { return "Tree"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype); }

  /// Collective, blocking.
  TreeReduction(const backend::ChannelContext& context, Deadline deadline)
      : accumulate_(context.accumulate), lanes_(context, "tree", deadline) {
    if (left() != nobody) {
      memory_.reset(new std::byte[6 * piece_bytes]);
    }
  }

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (lanes_.size() == 1) {
      copy(input, output);
      return true;
    }
    const kernels::PartialReduction reduction(output.dtype, op, lanes_.size(), accumulate_);
    const std::size_t length = piece_bytes / size_bytes(reduction.type());
    return lanes_.run(pieces_in(output.count, length), [&](Lane& lane, PieceRun run) {
      return up(lane, run, input, output, reduction, length) && down(lane, run, output, length);
    });
  }

  void abort(const Cause& cause) noexcept { lanes_.abort(cause); }
  std::optional<Cause> failure() const { return lanes_.failure(); }

 private:
  using Lane = typename TwoLanes<B>::Lane;

  int existing(int rank) const noexcept { return rank < lanes_.size() ? rank : nobody; }
  int left() const noexcept { return existing(2 * lanes_.rank() + 1); }
  int right() const noexcept { return existing(2 * lanes_.rank() + 2); }
  bool has_children(int rank) const noexcept { return rank != nobody && existing(2 * rank + 1) != nobody; }
  int parent() const noexcept { return lanes_.rank() == 0 ? nobody : (lanes_.rank() - 1) / 2; }

  /// While one piece comes from the left child, the one before it goes to the parent. No rank waits for ever: every
  /// message waits only for such of an earlier piece, or of the same piece further down or further left. A rank without
  /// children sends its contribution, the others partial results.
  bool up(Lane& lane, PieceRun run, const ConstBufferView& input, const BufferView& output,
          const kernels::PartialReduction& reduction, std::size_t length) {
    std::byte* const memory = left() == nobody ? nullptr : memory_.get() + 3 * run.first * piece_bytes;
    const auto room = [&](int child, std::size_t place, std::size_t count) {
      return BufferView{child == nobody ? nullptr : memory + place * piece_bytes,
                        count,
                        has_children(child) ? reduction.type() : output.dtype,
                        {}};
    };
    Part before{};
    for (std::size_t index = run.first; index < pieces_in(output.count, length) + run.stride; index += run.stride) {
      const Part now = piece_of({0, output.count}, length, index);
      const BufferView first = room(left(), 0, now.count);
      const BufferView second = room(right(), 1, now.count);
      const BufferView partial{
          left() == nobody ? nullptr : memory + 2 * piece_bytes, before.count, reduction.type(), {}};
      if (!lane.exchange(left() == nobody ? view_of(input, before) : partial, parent(), first, left()) ||
          !lane.recv(second, right())) {
        return false;
      }
      if (left() != nobody) {
        const bool ends = parent() == nobody;
        const std::array<kernels::PartialReduction::Source, 3> sources{{{view_of(input, now).data, false},
                                                                        {first.data, has_children(left())},
                                                                        {second.data, has_children(right())}}};
        reduction(std::span(sources).first(right() == nobody ? 2 : 3), ends ? view_of(output, now).data : partial.data,
                  now.count, ends);
      }
      before = now;
    }
    return true;
  }

  bool down(Lane& lane, PieceRun run, const BufferView& output, std::size_t length) {
    Part before{};
    for (std::size_t index = run.first; index < pieces_in(output.count, length) + run.stride; index += run.stride) {
      const Part now = piece_of({0, output.count}, length, index);
      if (!lane.exchange(view_of(output, before), left(), view_of(output, now), parent()) ||
          !lane.send(view_of(output, before), right())) {
        return false;
      }
      before = now;
    }
    return true;
  }

  Accumulate accumulate_;
  std::unique_ptr<std::byte[]> memory_;  ///< for each lane a piece of each child, and one for the parent
  TwoLanes<B> lanes_;
};

/// Names TreeReduction in a policy.
struct Tree {
  static constexpr std::string_view name() noexcept { return "Tree"; }

  template <class B>
  static constexpr bool works_on = CarriesMessages<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(works_on<B>,
                  "dtrain: topology::Tree needs a backend with send and recv on host streams "
                  "(CanSendRecv in dtrain/backend/communicator.hpp)");
  }

  template <class B>
  using Over = RoutedBackend<B, TreeReduction<B>>;
};

static_assert(Topology<Tree>);

}  // namespace DTRAIN_NAMESPACE::topology
