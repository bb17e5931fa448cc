#pragma once
/// @file
/// RunningBucket: the step and bucket that BucketReduction communicates now. StepMeter of this folder sets it; the
/// error sentences of Driver's channel have it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/bucket_plan.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Translates a channel's operation into the user's terms: step, bucket, elements without padding. Threads: any.
class RunningBucket {
 public:
  void plan(const BucketPlan& plan);

  /// The communication has reached bucket `bucket` of step `step`, which counts from 1.
  void begin(std::uint64_t step, std::size_t bucket) noexcept {
    bucket_.store(bucket, std::memory_order_relaxed);
    step_.store(step, std::memory_order_relaxed);
  }

  /// "all_reduce (average) of 1000 f32 (bucket 0 of 3 in step 7)", without padding; before step 1, only the operation.
  std::string describe(backend::Operation operation) const;

 private:
  struct BucketSize {
    std::size_t elements;  ///< with padding
    std::size_t payload;   ///< without
  };

  mutable std::mutex mutex_;
  std::vector<BucketSize> buckets_;
  std::atomic<std::uint64_t> step_{0};
  std::atomic<std::size_t> bucket_{0};
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void RunningBucket::plan(const BucketPlan& plan) {
  const std::lock_guard lock(mutex_);
  buckets_.clear();
  for (const PlannedBucket& bucket : plan.buckets) {
    const std::size_t size = size_bytes(bucket.dtype);
    buckets_.push_back({bucket.bytes / size, bucket.payload_bytes / size});
  }
}

DTRAIN_DEFINED std::string RunningBucket::describe(backend::Operation operation) const {
  const std::uint64_t step = step_.load(std::memory_order_relaxed);
  const std::size_t bucket = bucket_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  if (step == 0 || bucket >= buckets_.size()) return to_string(operation);
  const bool is_buffer = operation.kind == backend::OperationKind::broadcast;
  const std::string where = is_buffer ? "" : format_text("bucket {} of {} ", {bucket, buckets_.size()});
  if (operation.kind == backend::OperationKind::all_reduce && operation.count == buckets_[bucket].elements) {
    operation.count = buckets_[bucket].payload;
  }
  return format_text("{} ({}in step {})", {to_string(operation), where, step});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
