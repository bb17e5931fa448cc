#pragma once
/// @file
/// GroupOptions: a program's choices for all groups of a job.

#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Options of a job's groups, which subgroups and wrappers inherit. All but `progress` are the same on every rank; a
/// difference is an error on all ranks.
/// @ingroup jobs
struct GroupOptions {
  Accumulate accumulate = Accumulate::element;  ///< f32 for f16 and bf16: up to twice the bytes of partial results
  /// Whether a thread runs collectives that are given a host stream, from the call on. Without one (no free core, or
  /// `caller`) they begin when a thread of this rank waits in dtrain, and after 20 ms at the latest.
  stream::host::Progress progress = stream::host::Progress::automatic;
};

}  // namespace DTRAIN_NAMESPACE::group

namespace DTRAIN_NAMESPACE {
using group::GroupOptions;
}  // namespace DTRAIN_NAMESPACE
