#pragma once
/// @file
/// GroupOptions: what a program chooses for all channels of its process groups.

#include "dtrain/backend/algorithm_choice.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Must be the same on every rank; a difference is an error on all ranks. Subgroups and wrappers inherit them.
struct GroupOptions {
  Accumulate accumulate = Accumulate::element;  ///< f32 for f16 and bf16: up to twice the bytes of partial results
  /// How Mpi and Gloo select the algorithm of an all_reduce; others have one. By cost, it pays with many ranks. A
  /// measured choice may differ from run to run, and the bits with it: DdpOptions::deterministic uses the fixed one,
  /// and a wrapper with a measured DdpOptions::plan a measured one unless `given`.
  backend::AlgorithmChoice algorithms{};
};

}  // namespace DTRAIN_NAMESPACE::group

namespace DTRAIN_NAMESPACE {
using backend::AlgorithmChoice;
using backend::LinkCost;
using group::GroupOptions;
}  // namespace DTRAIN_NAMESPACE
