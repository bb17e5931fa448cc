#pragma once
/// @file
/// Timeline: the step records of all ranks as Chrome trace JSON, for Perfetto and chrome://tracing.

#include <span>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/profile/rank_timeline.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// One trace process for each rank, with four rows: steps, ready gradients, buckets from launch to start, and
/// reductions. One event a line. Times count from the earliest record.
/// @param parameters names, in the order of parameters(); a missing name is replaced by its index
std::string timeline_json(std::span<const RankTimeline> ranks, std::span<const std::string> parameters = {});

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/profile/timeline_definitions.hpp"
#endif
