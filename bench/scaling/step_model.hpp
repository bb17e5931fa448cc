#pragma once
/// @file
/// A model of a training step: when gradients are ready, when their buckets are reduced, and what of that is hidden.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/ddp/bucket_plan.hpp"

namespace bench {

/// Of one step, in seconds from its beginning.
struct StepTimes {
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
StepTimes model_step(const dtrain::ddp::BucketPlan& plan, std::span<const double> ready_at, double compute,
                     Reduction reduction_seconds) {
  StepTimes times{compute, 0, compute};
  double free_at = 0;
  for (const dtrain::ddp::PlannedBucket& bucket : plan.buckets) {
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

/// A gradient hook: its work and its collectives run one after the other on the stream that communicates, on a core
/// that no computing needs.
struct Compression {
  double sent_share = 1;        ///< of the bytes of plain all-reduces
  double bytes_per_second = 1;  ///< of gradients, compressed and decompressed

  /// The reduction of a bucket. @param reduction_seconds of so many bytes: double(double)
  template <class Reduction>
  double seconds(double bytes, Reduction reduction_seconds) const {
    return bytes / bytes_per_second + reduction_seconds(sent_share * bytes);
  }

  /// The bandwidth of the links between hosts below which a reduction of many bytes is shorter with it: a link carries
  /// 2 (h - 1) / h of the bytes.
  double pays_below(int hosts) const noexcept {
    return 2.0 * (hosts - 1) / hosts * (1 - sent_share) * bytes_per_second;
  }
};

/// Ready times of a backward pass that takes as long for each parameter, the last one's first.
inline std::vector<double> evenly_ready(std::size_t parameters, double forward, double backward) {
  std::vector<double> ready(parameters);
  for (std::size_t i = 0; i < parameters; ++i) {
    ready[i] = forward + backward * static_cast<double>(parameters - i) / static_cast<double>(parameters);
  }
  return ready;
}

}  // namespace bench
