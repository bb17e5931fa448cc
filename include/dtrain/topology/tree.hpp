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
#include "dtrain/topology/combination.hpp"
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
  TreeReduction(const backend::ChannelContext& context, Deadline deadline) : lanes_(context, "tree", deadline) {
    if (left() != nobody) {
      received_.reset(new std::byte[4 * piece_bytes]);
    }
  }

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (lanes_.size() == 1) {
      copy(input, output);
      return true;
    }
    const Combination combine(output.dtype, op, lanes_.size());
    return lanes_.run(pieces(output), [&](Lane& lane, PieceRun run) {
      return up(lane, run, input, output, combine) && down(lane, run, output);
    });
  }

  void abort(const Cause& cause) noexcept { lanes_.abort(cause); }
  std::optional<Cause> failure() const { return lanes_.failure(); }

 private:
  using Lane = typename TwoLanes<B>::Lane;

  int child(int number) const noexcept {
    const int rank = 2 * lanes_.rank() + number;
    return rank < lanes_.size() ? rank : nobody;
  }
  int left() const noexcept { return child(1); }
  int right() const noexcept { return child(2); }
  int parent() const noexcept { return lanes_.rank() == 0 ? nobody : (lanes_.rank() - 1) / 2; }

  static Part piece(const BufferView& whole, std::size_t index) noexcept {
    return piece_of({0, whole.count}, piece_bytes / size_bytes(whole.dtype), index);
  }
  static std::size_t pieces(const BufferView& whole) noexcept {
    return pieces_in(whole.count, piece_bytes / size_bytes(whole.dtype));
  }

  /// While one piece comes from the left child, the one before it goes to the parent. No rank waits for ever: every
  /// message waits only for such of an earlier piece, or of the same piece further down or further left.
  bool up(Lane& lane, PieceRun run, const ConstBufferView& input, const BufferView& output,
          const Combination& combine) {
    std::byte* const memory = left() == nobody ? nullptr : received_.get() + 2 * run.first * piece_bytes;
    const ConstBufferView reduced = left() == nobody ? input : ConstBufferView(output);
    Part before{};
    for (std::size_t index = run.first; index < pieces(output) + run.stride; index += run.stride) {
      const Part now = piece(output, index);
      const BufferView first{memory, now.count, output.dtype, {}};
      const BufferView second{left() == nobody ? nullptr : memory + piece_bytes, now.count, output.dtype, {}};
      if (!lane.exchange(view_of(reduced, before), parent(), first, left()) || !lane.recv(second, right())) {
        return false;
      }
      if (left() != nobody) {
        const std::array<const std::byte*, 3> sources{view_of(input, now).data, first.data, second.data};
        combine(std::span(sources).first(right() == nobody ? 2 : 3), view_of(output, now), parent() == nobody);
      }
      before = now;
    }
    return true;
  }

  bool down(Lane& lane, PieceRun run, const BufferView& output) {
    Part before{};
    for (std::size_t index = run.first; index < pieces(output) + run.stride; index += run.stride) {
      const Part now = piece(output, index);
      if (!lane.exchange(view_of(output, before), left(), view_of(output, now), parent()) ||
          !lane.send(view_of(output, before), right())) {
        return false;
      }
      before = now;
    }
    return true;
  }

  std::unique_ptr<std::byte[]> received_;  ///< for each lane a piece of each child
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
