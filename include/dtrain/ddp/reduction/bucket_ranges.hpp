#pragma once
/// @file
/// Bucket ranges: the elements of each bucket in the arena.

#include <cstddef>
#include <vector>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The elements of `planned` in the arena at `arena`, with padding: zeros, which every reduction leaves zero.
inline BufferView range_of(const PlannedBucket& planned, std::byte* arena) noexcept {
  std::byte* const data = planned.bytes == 0 ? nullptr : arena + planned.offset;
  return {data, planned.bytes / size_bytes(planned.dtype), planned.dtype, planned.device};
}

/// The ranges of all buckets of `plan`.
inline std::vector<BufferView> ranges_of(const BucketPlan& plan, std::byte* arena) {
  std::vector<BufferView> ranges;
  ranges.reserve(plan.buckets.size());
  for (const PlannedBucket& bucket : plan.buckets) {
    ranges.push_back(range_of(bucket, arena));
  }
  return ranges;
}

/// The number of gradients of each bucket.
inline std::vector<std::size_t> parameter_counts(const BucketPlan& plan) {
  std::vector<std::size_t> counts;
  counts.reserve(plan.buckets.size());
  for (const PlannedBucket& bucket : plan.buckets) {
    counts.push_back(bucket.parameters.size());
  }
  return counts;
}

}  // namespace DTRAIN_NAMESPACE::ddp
