#pragma once
/// @file
/// GroupOptions: options of the collectives of a job's groups.

#include "dtrain/core/types/reduce_op.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Must be the same on every rank; a difference is an error on all ranks. Subgroups and wrappers inherit them.
struct GroupOptions {
  Accumulate accumulate = Accumulate::element;  ///< f32 for f16 and bf16: up to twice the bytes of partial results
};

}  // namespace DTRAIN_NAMESPACE::group

namespace DTRAIN_NAMESPACE {
using group::GroupOptions;
}  // namespace DTRAIN_NAMESPACE
