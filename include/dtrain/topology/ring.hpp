#pragma once
/// @file
/// topology::Ring: every rank sends to the next one only, and every link carries the same.

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
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
      : accumulate_(context.accumulate), memory_(new std::byte[4 * piece_bytes]), lanes_(context, "ring", deadline) {}

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (lanes_.size() == 1) {
      copy(input, output);
      return true;
    }
    const kernels::PartialReduction reduction(output.dtype, op, lanes_.size(), accumulate_);
    const std::size_t length = piece_bytes / size_bytes(reduction.type());
    const std::size_t pieces = pieces_in(part_of(output.count, lanes_.size(), 0).count, length);
    return lanes_.run(pieces, [&](Lane& lane, PieceRun run) {
      bool serves = true;
      for (std::size_t piece = run.first; serves && piece < pieces; piece += run.stride) {
        const auto of_part = [&](int back) { return piece_of(part(output, back), length, piece); };
        serves = reduce(lane, memory_.get() + 2 * run.first * piece_bytes, input, output, reduction, of_part) &&
                 gather(lane, output, of_part);
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

  /// A partial result goes to the next rank, and one of another part, which comes, takes this rank's elements in.
  template <class OfPart>
  bool reduce(Lane& lane, std::byte* memory, const ConstBufferView& input, const BufferView& output,
              const kernels::PartialReduction& reduction, OfPart of_part) {
    std::byte* sending = memory;
    std::byte* receiving = memory + piece_bytes;
    for (int step = 0; step + 1 < lanes_.size(); ++step) {
      const bool begins = step == 0;
      const bool ends = step + 2 == lanes_.size();
      const Part sent = of_part(step);
      const Part taken = of_part(step + 1);
      const ConstBufferView partial{sending, sent.count, reduction.type()};
      const BufferView received =
          begins ? BufferView{reduction.contributions_in(receiving, taken.count), taken.count, output.dtype, {}}
                 : BufferView{receiving, taken.count, reduction.type(), {}};
      if (!lane.exchange(begins ? view_of(input, sent) : partial, next(), received, previous())) {
        return false;
      }
      const std::array<kernels::PartialReduction::Source, 2> sources{
          {{received.data, !begins}, {view_of(input, taken).data, false}}};
      reduction(sources, ends ? view_of(output, taken).data : receiving, taken.count, ends);
      std::swap(sending, receiving);
    }
    return true;
  }

  /// A part that is done goes on.
  template <class OfPart>
  bool gather(Lane& lane, const BufferView& output, OfPart of_part) {
    for (int step = 0; step + 1 < lanes_.size(); ++step) {
      if (!lane.exchange(view_of(output, of_part(step - 1)), next(), view_of(output, of_part(step)), previous())) {
        return false;
      }
    }
    return true;
  }

  Accumulate accumulate_;
  std::unique_ptr<std::byte[]> memory_;  ///< for each lane a piece that is sent and one that is received
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
