#pragma once
/// @file
/// Buckets at run time: ranges of the arena.

#include <cstddef>
#include <vector>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The elements of `planned` in an arena at `arena`, padding included: zeros, which every reduction leaves as they are.
inline BufferView range_of(const PlannedBucket& planned, std::byte* arena) noexcept {
  std::byte* const data = planned.bytes == 0 ? nullptr : arena + planned.offset;
  return {data, planned.bytes / size_bytes(planned.dtype), planned.dtype, planned.device};
}

/// Of all its buckets.
inline std::vector<BufferView> ranges_of(const BucketPlan& plan, std::byte* arena) {
  std::vector<BufferView> ranges;
  ranges.reserve(plan.buckets.size());
  for (const PlannedBucket& bucket : plan.buckets) {
    ranges.push_back(range_of(bucket, arena));
  }
  return ranges;
}

/// How many gradients each of its buckets waits for.
inline std::vector<std::size_t> parameter_counts(const BucketPlan& plan) {
  std::vector<std::size_t> counts;
  counts.reserve(plan.buckets.size());
  for (const PlannedBucket& bucket : plan.buckets) {
    counts.push_back(bucket.parameters.size());
  }
  return counts;
}

}  // namespace DTRAIN_NAMESPACE::ddp
