#pragma once
/// @file
/// A model of a training step: when gradients are ready, when their buckets are reduced, and what of that is hidden.

#include <algorithm>
#include <cstddef>
#include <span>

#include "dtrain/core/version.hpp"
#include "dtrain/ddp/bucket_plan.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Of one step, in seconds from its beginning.
struct ModelledStep {
  double compute = 0;        ///< forward and backward
  double communication = 0;  ///< of all buckets, one after the other
  double step = 0;           ///< when both are done

  double exposed() const noexcept { return step - compute; }
  double times_the_longer() const noexcept { return step / std::max(compute, communication); }
};

/// A bucket is reduced once its last gradient is ready and the bucket before it is done: one channel, one order.
/// @param ready_at when each gradient is ready, by parameter @param compute when forward and backward are done
/// @param reduction_seconds of a bucket of so many bytes: double(std::size_t)
template <class Reduction>
ModelledStep model_step(const BucketPlan& plan, std::span<const double> ready_at, double compute,
                        Reduction reduction_seconds) {
  ModelledStep times{compute, 0, compute};
  double free_at = 0;
  for (const PlannedBucket& bucket : plan.buckets) {
    double ready = 0;
    for (const std::size_t parameter : bucket.parameters) {
      ready = std::max(ready, ready_at[parameter]);
    }
    const double seconds = reduction_seconds(bucket.bytes);
    free_at = std::max(free_at, ready) + seconds;
    times.communication += seconds;
  }
  times.step = std::max(compute, free_at);
  return times;
}

}  // namespace DTRAIN_NAMESPACE::ddp
