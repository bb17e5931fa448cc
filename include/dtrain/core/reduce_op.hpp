#pragma once
/// @file
/// The operations that a reduction combines ranks with.

#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// `average` is the sum divided by the number of ranks, in one pass where the backend can.
enum class ReduceOp : std::uint8_t { sum = 1, average, min, max, product };

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

}  // namespace DTRAIN_NAMESPACE
