#pragma once
/// @file
/// A model of a training step: when gradients are ready, when their buckets are reduced, and which part of the
/// reductions is hidden; plan_search.hpp compares plans by it. StepProfile: the times that MeasuredPlan measured on one
/// rank.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/profile/step_record.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Times of a measured step, in seconds from the step's begin.
struct StepProfile {
  double compute = 0;                  ///< when finish() was called
  bool overlaps = false;               ///< whether a bucket was started before finish()
  std::vector<double> ready_at;        ///< by parameter; `compute` without a record
  std::vector<double> bucket_seconds;  ///< by bucket; 0 without records
};

/// Times of a modelled step, in seconds from its begin.
struct ModelledStep {
  double compute = 0;        ///< forward and backward
  double communication = 0;  ///< of all buckets, one after the other
  double step = 0;           ///< when both are done

  double exposed() const noexcept { return step - compute; }
  double times_the_longer() const noexcept { return step / std::max(compute, communication); }
};

/// Times of a step with this plan. A bucket is reduced once its last gradient is ready and the bucket before is
/// reduced: one channel, one order.
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

/// @param records of the step, perhaps among records of other steps
inline StepProfile step_profile(std::span<const StepRecord> records, std::uint64_t step, std::size_t parameters,
                                std::size_t buckets) {
  StepRecord::Clock::time_point begun{};
  for (const StepRecord& record : records) {
    if (record.step == step && record.event == StepEvent::begun) begun = record.time;
  }
  constexpr double none = -1;
  StepProfile profile{0, false, std::vector<double>(parameters, none), std::vector<double>(buckets, 0)};
  std::vector<double> started(buckets, none);
  std::vector<double> reduced(buckets, none);
  const auto set = [](std::vector<double>& times, std::size_t index, double time) {
    if (index < times.size()) times[index] = time;
  };
  for (const StepRecord& record : records) {
    if (record.step != step) continue;
    const double time = std::chrono::duration<double>(record.time - begun).count();
    switch (record.event) {
      case StepEvent::ready: set(profile.ready_at, record.index, time); break;
      case StepEvent::started: set(started, record.index, time); break;
      case StepEvent::reduced: set(reduced, record.index, time); break;
      case StepEvent::waiting: profile.compute = time; break;
      default: break;
    }
  }
  for (double& time : profile.ready_at) {
    if (time == none) time = profile.compute;
  }
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    if (started[bucket] == none || reduced[bucket] == none) continue;
    profile.bucket_seconds[bucket] = std::max(reduced[bucket] - started[bucket], 0.0);
    profile.overlaps = profile.overlaps || started[bucket] < profile.compute;
  }
  return profile;
}

}  // namespace DTRAIN_NAMESPACE::ddp
