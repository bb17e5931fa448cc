#pragma once
/// @file
/// The reduction of two partial results on their way through the ranks.

#include <cstddef>

#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// An average is a sum whose last combination of each element also divides by the number of ranks.
template <Wire W>
kernels::Reduction reduction_of(const Call<W>& call, bool last) noexcept {
  const Operation& operation = call.operation;
  if (operation.op == ReduceOp::average && !last) {
    return kernels::Reduction::of(operation.dtype, ReduceOp::sum);
  }
  return kernels::Reduction::of(operation.dtype, operation.op).over(static_cast<std::size_t>(call.size()));
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
