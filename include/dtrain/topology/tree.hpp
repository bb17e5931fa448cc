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
      : lane_(B::open_blocking(beside(context, "tree"), deadline)) {
    if (left() != nobody) {
      received_.reset(new std::byte[2 * piece_bytes]);
    }
  }

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (lane_.size() == 1) {
      copy(input, output);
      return true;
    }
    return up(input, output, Combination(output.dtype, op, lane_.size())) && down(output);
  }

  void abort(const Cause& cause) noexcept { lane_.abort(cause); }
  std::optional<Cause> failure() const { return lane_.failure(); }

 private:
  int child(int number) const noexcept {
    const int rank = 2 * lane_.rank() + number;
    return rank < lane_.size() ? rank : nobody;
  }
  int left() const noexcept { return child(1); }
  int right() const noexcept { return child(2); }
  int parent() const noexcept { return lane_.rank() == 0 ? nobody : (lane_.rank() - 1) / 2; }

  static Part piece(const BufferView& whole, std::size_t index) noexcept {
    return piece_of({0, whole.count}, piece_bytes / size_bytes(whole.dtype), index);
  }
  static std::size_t pieces(const BufferView& whole) noexcept {
    return pieces_in(whole.count, piece_bytes / size_bytes(whole.dtype));
  }

  /// While one piece comes from the left child, the one before it goes to the parent. No rank waits for ever: every
  /// message waits only for such of an earlier piece, or of the same piece further down or further left.
  bool up(const ConstBufferView& input, const BufferView& output, const Combination& combine) {
    const ConstBufferView reduced = left() == nobody ? input : ConstBufferView(output);
    Part before{};
    for (std::size_t index = 0; index <= pieces(output); ++index) {
      const Part now = piece(output, index);
      const BufferView first{received_.get(), now.count, output.dtype, {}};
      const BufferView second{left() == nobody ? nullptr : received_.get() + piece_bytes, now.count, output.dtype, {}};
      if (!lane_.exchange(view_of(reduced, before), parent(), first, left()) || !lane_.recv(second, right())) {
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

  bool down(const BufferView& output) {
    Part before{};
    for (std::size_t index = 0; index <= pieces(output); ++index) {
      const Part now = piece(output, index);
      if (!lane_.exchange(view_of(output, before), left(), view_of(output, now), parent()) ||
          !lane_.send(view_of(output, before), right())) {
        return false;
      }
      before = now;
    }
    return true;
  }

  Lane<typename B::Communicator> lane_;
  std::unique_ptr<std::byte[]> received_;  ///< a piece of each child
};

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
