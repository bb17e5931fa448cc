#pragma once
/// @file
/// ReduceOp: the reduction operators. Accumulate: the type of 16-bit floats' partial results between ranks.

#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// `average` is the sum divided by the number of ranks, in one pass if the backend can.
/// @ingroup collectives
enum class ReduceOp : std::uint8_t { sum = 1, average, min, max, product };

/// The name in messages: "average".
/// @ingroup collectives
constexpr const char* name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::average: return "average";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::product: return "product";
  }
  return "unknown reduction";
}

/// Type of the partial results of 16-bit floats that travel between ranks, as round a ring. `element`: the elements'
/// own type, rounded at every rank. `f32`: twice as many bytes, rounded once at the end.
/// @ingroup collectives
enum class Accumulate : std::uint8_t { element = 0, f32 };

constexpr const char* name(Accumulate accumulate) noexcept {
  switch (accumulate) {
    case Accumulate::element: return "element";
    case Accumulate::f32: return "f32";
  }
  return "unknown type";
}

}  // namespace DTRAIN_NAMESPACE
