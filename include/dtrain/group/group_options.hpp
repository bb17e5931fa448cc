#pragma once
/// @file
/// GroupOptions: what a user may choose about the collectives of a job's groups.

#include "dtrain/core/types/reduce_op.hpp"

namespace DTRAIN_NAMESPACE::group {

/// The same on every rank; a difference is an error on all of them. Subgroups and wrappers inherit it.
struct GroupOptions {
  Accumulate accumulate = Accumulate::element;  ///< of f16 and bf16: f32 doubles the bytes of partial results at most
};

}  // namespace DTRAIN_NAMESPACE::group

namespace DTRAIN_NAMESPACE {
using group::GroupOptions;
}  // namespace DTRAIN_NAMESPACE
