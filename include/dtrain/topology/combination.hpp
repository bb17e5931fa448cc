#pragma once
/// @file
/// The local side of a reduction that goes from rank to rank: partial results, and the last one.

#include <cstddef>
#include <span>

#include "dtrain/core/buffer_view.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// A partial result of an average is a sum.
constexpr ReduceOp partial_op(ReduceOp op) noexcept {
  return op == ReduceOp::average ? ReduceOp::sum : op;
}

/// Combines what `ranks` ranks gave; see kernels::Reduction for the bits. Partial results have the buffers' type, so
/// f16 and bf16 are rounded, and integers taken modulo 2^bits, on every rank that they pass.
class Combination {
 public:
  Combination(DType dtype, ReduceOp op, int ranks) noexcept
      : partial_(kernels::Reduction::of(dtype, partial_op(op))),
        last_(kernels::Reduction::of(dtype, op).over(static_cast<std::size_t>(ranks))) {}

  /// Reduces the sources, from the left, into `target`; the last combination of an element divides an average.
  void operator()(std::span<const std::byte* const> sources, const BufferView& target, bool last) const noexcept {
    std::byte* const targets[] = {target.data};
    (last ? last_ : partial_)(sources, targets, target.count);
  }

 private:
  kernels::Reduction partial_;
  kernels::Reduction last_;
};

/// Nothing where both are the same memory.
inline void copy(const ConstBufferView& from, const BufferView& to) noexcept {
  if (from.data != to.data && to.count != 0) {
    kernels::copy_bytes(to.data, from.data, to.bytes());
  }
}

}  // namespace DTRAIN_NAMESPACE::topology
