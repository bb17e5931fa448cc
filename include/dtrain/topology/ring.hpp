#pragma once
/// @file
/// topology::Ring: every rank sends to the next one only, and every link carries the same.

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/topology/combination.hpp"
#include "dtrain/topology/lane.hpp"
#include "dtrain/topology/parts.hpp"
#include "dtrain/topology/routed.hpp"
#include "dtrain/topology/topology.hpp"
#include "dtrain/topology/two_lanes.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Reduce-scatter and all-gather round the ring, 2 (n - 1) steps: each rank sends 2 (n - 1) / n of the bytes, the least
/// that is possible. For large buffers; with many ranks its steps make small ones slow.
/// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
template <class B>
class RingReduction {
 public:
  static constexpr backend::Determinism determinism = backend::Determinism::for_a_plan;
  static constexpr std::string_view name() noexcept { return "Ring"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype); }

  /// Collective, blocking.
  RingReduction(const backend::ChannelContext& context, Deadline deadline)
      : received_(new std::byte[2 * piece_bytes]), lanes_(context, "ring", deadline) {}

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (lanes_.size() == 1) {
      copy(input, output);
      return true;
    }
    const Combination combine(output.dtype, op, lanes_.size());
    return lanes_.run(pieces(output), [&](Lane& lane, PieceRun run) {
      bool serves = true;
      for (int step = 0; serves && step + 1 < lanes_.size(); ++step) {
        serves = reduce(lane, run, input, output, combine, step);
      }
      for (int step = 0; serves && step + 1 < lanes_.size(); ++step) {
        serves = gather(lane, run, output, step);
      }
      return serves;
    });
  }

  void abort(const Cause& cause) noexcept { lanes_.abort(cause); }
  std::optional<Cause> failure() const { return lanes_.failure(); }

 private:
  using Lane = typename TwoLanes<B>::Lane;

  int next() const noexcept { return (lanes_.rank() + 1) % lanes_.size(); }
  int previous() const noexcept { return (lanes_.rank() + lanes_.size() - 1) % lanes_.size(); }

  /// The part that is `back` ranks behind this one's own.
  Part part(const BufferView& whole, int back) const noexcept {
    return part_of(whole.count, lanes_.size(), (lanes_.rank() + 2 * lanes_.size() - back) % lanes_.size());
  }

  static std::size_t length(const BufferView& whole) noexcept { return piece_bytes / size_bytes(whole.dtype); }
  std::size_t pieces(const BufferView& whole) const noexcept {
    return pieces_in(part_of(whole.count, lanes_.size(), 0).count, length(whole));
  }

  /// A partial result goes to the next rank, and one of another part, which comes, takes this rank's elements in.
  bool reduce(Lane& lane, PieceRun run, const ConstBufferView& input, const BufferView& output,
              const Combination& combine, int step) {
    std::byte* const memory = received_.get() + run.first * piece_bytes;
    const ConstBufferView partial = step == 0 ? input : ConstBufferView(output);
    for (std::size_t piece = run.first; piece < pieces(output); piece += run.stride) {
      const Part sent = piece_of(part(output, step), length(output), piece);
      const Part taken = piece_of(part(output, step + 1), length(output), piece);
      const BufferView received{memory, taken.count, output.dtype, {}};
      if (!lane.exchange(view_of(partial, sent), next(), received, previous())) {
        return false;
      }
      const std::array<const std::byte*, 2> sources{received.data, view_of(input, taken).data};
      combine(sources, view_of(output, taken), step + 2 == lanes_.size());
    }
    return true;
  }

  /// A part that is done goes on.
  bool gather(Lane& lane, PieceRun run, const BufferView& output, int step) {
    for (std::size_t piece = run.first; piece < pieces(output); piece += run.stride) {
      const Part sent = piece_of(part(output, step - 1), length(output), piece);
      const Part taken = piece_of(part(output, step), length(output), piece);
      if (!lane.exchange(view_of(output, sent), next(), view_of(output, taken), previous())) {
        return false;
      }
    }
    return true;
  }

  std::unique_ptr<std::byte[]> received_;  ///< a piece of each lane
  TwoLanes<B> lanes_;
};

/// Names RingReduction in a policy.
struct Ring {
  static constexpr std::string_view name() noexcept { return "Ring"; }

  template <class B>
  static constexpr bool works_on = CarriesMessages<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(works_on<B>,
                  "dtrain: topology::Ring needs a backend with send and recv on host streams "
                  "(CanSendRecv in dtrain/backend/communicator.hpp)");
  }

  template <class B>
  using Over = RoutedBackend<B, RingReduction<B>>;
};

static_assert(Topology<Ring>);

}  // namespace DTRAIN_NAMESPACE::topology
