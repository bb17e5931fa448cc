#pragma once
/// @file
/// wire::Same, Bf16, F16: types in which a topology sends f32 elements. WireReduction: the all-reduce that sends them.

#include <type_traits>

#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/in_place_cast.hpp"

namespace DTRAIN_NAMESPACE::wire {

/// The elements' own type.
/// @ingroup topologies
struct Same {
  static constexpr DType dtype = DType::f32;
};

/// 16 bits with the range of f32.
/// @ingroup topologies
struct Bf16 {
  static constexpr DType dtype = DType::bf16;
};

/// 16 bits, more precise than Bf16 and up to 65,504. A sum beyond 65,504 is infinite; averages up to 65,400 are finite.
/// @ingroup topologies
struct F16 {
  static constexpr DType dtype = DType::f16;
};

}  // namespace DTRAIN_NAMESPACE::wire

namespace DTRAIN_NAMESPACE::topology {

/// A type that narrows f32 elements.
template <class W>
inline constexpr bool narrows = std::is_same_v<W, wire::Bf16> || std::is_same_v<W, wire::F16>;

/// Sums and averages of f32 in the wire type, other reductions as they are. Threads: one at a time; traffic() any.
template <class WireType>
class WireReduction {
 public:
  static_assert(narrows<WireType> || std::is_same_v<WireType, wire::Same>,
                "dtrain: a wire type is wire::Bf16, wire::F16 or wire::Same");

  /// Whether elements are cast to the wire type.
  static constexpr bool casts(DType dtype, ReduceOp op) noexcept {
    return narrows<WireType> && dtype == DType::f32 && (op == ReduceOp::sum || op == ReduceOp::average);
  }

  /// Rounds this rank's elements once, reduces the rounded elements, and widens the result, in place. An average in 16
  /// bits is a sum of quotients, so that no partial sum overflows.
  /// @param reduce `reduce(view, op)` reduces a view in place among `ranks` ranks @returns the result of `reduce`
  /// @param may_cast false: the elements stay as they are
  template <class Reduce>
  bool all_reduce(const BufferView& own, ReduceOp op, int ranks, Reduce reduce, [[maybe_unused]] bool may_cast = true) {
    if constexpr (narrows<WireType>) {
      if (may_cast && casts(own.dtype, op)) {
        traffic_.replaces(own.bytes());
        traffic_.sends_all_reduce(narrowed(own).bytes());
        narrow(own, op, ranks);
        const bool serves = reduce(narrowed(own), ReduceOp::sum);
        widen(own);
        return serves;
      }
    }
    return reduce(own, op);
  }

  /// A reduce-scatter of `whole`, whose content is lost, to `own`, rounded and widened as in all_reduce.
  /// @param reduce `reduce(whole, own, op)`
  template <class Reduce>
  bool reduce_scatter(const BufferView& whole, const BufferView& own, ReduceOp op, int ranks, Reduce reduce) {
    if constexpr (narrows<WireType>) {
      if (casts(own.dtype, op)) {
        traffic_.replaces(whole.bytes() / 2);
        traffic_.sends(narrowed(whole).bytes());
        narrow(whole, op, ranks);
        const bool serves = reduce(narrowed(whole), narrowed(own), ReduceOp::sum);
        widen(own);
        return serves;
      }
    }
    return reduce(whole, own, op);
  }

  CompressedTraffic traffic() const noexcept { return traffic_.total(); }

 private:
  static BufferView narrowed(const BufferView& view) noexcept {
    return {view.data, view.count, WireType::dtype, view.device};
  }

  void narrow(const BufferView& view, ReduceOp op, int ranks) noexcept {
    const float factor = op == ReduceOp::average ? 1.0F / static_cast<float>(ranks) : 1.0F;
    traffic_.time([&] { kernels::narrow_in_place(view.data, view.count, WireType::dtype, factor); });
  }
  void widen(const BufferView& view) noexcept {
    traffic_.time([&] { kernels::widen_in_place(view.data, view.count, WireType::dtype); });
  }

  TrafficCounter traffic_;
};

}  // namespace DTRAIN_NAMESPACE::topology
