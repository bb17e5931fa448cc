#pragma once
/// @file
/// Plan search of a MeasuredPlan: the ranks' timings combined, a fitted cost of reductions, and the best bucket sizes
/// by a model. Pure.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/planning/saved_plan.hpp"
#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A message of n bytes takes alpha + n beta seconds. Source: R. Hockney, "The communication challenge for MPP: Intel
/// Paragon and Meiko CS-2", Parallel Computing 20 (1994).
struct LinkCost {
  double message_seconds = 0;  ///< alpha
  double byte_seconds = 0;     ///< beta

  constexpr double seconds(double messages, double bytes) const noexcept {
    return messages * message_seconds + bytes * byte_seconds;
  }
};

/// Times of a measured step, in seconds from the step's begin.
struct StepProfile {
  double compute = 0;                  ///< the time at which finish() was called
  bool overlaps = false;               ///< whether a bucket was started before finish()
  std::vector<double> ready_at;        ///< ready times by parameter; `compute` without a record
  std::vector<double> bucket_seconds;  ///< seconds by bucket; 0 without records
};

/// Times of a modelled step, in seconds from its begin.
struct ModelledStep {
  double compute = 0;        ///< forward and backward
  double communication = 0;  ///< time of all buckets, one after the other
  double step = 0;           ///< the time at which both are done

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

/// Bound for the ready times that rank 0 reads from each rank. With more parameters, a rank sends the last ready time
/// of each of 256 groups of successive parameters.
inline constexpr std::size_t max_ready_groups = 256;

/// Measurements of one rank.
struct RankTiming {
  std::vector<LinkCost> costs;  ///< costs by variant
  double compute = 0;           ///< seconds from a step's begin
  std::vector<double> ready;    ///< group times in ready order; all `compute` if no bucket starts before it
};

/// Medians of the duration of steps.
struct TrialTimes {
  std::chrono::nanoseconds planned{};
  std::chrono::nanoseconds given{};
};

/// A measured reduction of a bucket.
struct ReductionSample {
  double bytes;
  double seconds;
};

/// A model's gradients, and when they are ready in a step.
struct GradientTimes {
  std::span<const GradientSize> sizes;
  std::span<const std::size_t> order;
  std::span<const double> ready_at;  ///< seconds from the step's begin, by parameter
  double compute;                    ///< the time at which forward and backward are done
};

/// Sizes of buckets, and the step that the model expects with them.
struct PlannedStep {
  BucketCaps caps;
  std::size_t buckets;
  ModelledStep times;
  std::size_t variant = 0;  ///< variant of all_reduce: see choose_settings
};

namespace detail {

/// A time or cost; a value read from untrusted bytes is finite and not negative.
inline void seconds_field(Serializer& of, double& value) {
  auto bits = std::bit_cast<std::uint64_t>(value);
  of.number(bits);
  value = std::bit_cast<double>(bits);
  if (!kernels::is_finite(value) || value < 0) of.fail("has a time that is none");
}

inline std::size_t group_of(std::size_t position, std::size_t parameters) noexcept {
  return parameters <= max_ready_groups ? position : position * max_ready_groups / parameters;
}

inline constexpr double gain = 0.99;  ///< factor of a step's time: a better step is shorter than the product

/// Sizes for choose_caps to try: powers of two from 4 KiB until all gradients are in one bucket.
inline std::vector<BucketCaps> candidate_caps(std::size_t total_bytes) {
  std::vector<BucketCaps> candidates;
  for (std::size_t first = 4096; first / 2 < total_bytes; first *= 2) {
    const std::size_t largest = std::max(first, total_bytes / 16);  // see tapered_cap
    for (std::size_t bucket = first; bucket / 2 < largest; bucket *= 2) {
      candidates.push_back({first, bucket});
    }
  }
  return candidates;
}

}  // namespace detail

inline void fields(Serializer& of, RankTiming& timing) {
  of.list(timing.costs, 1, max_variants, [&of](LinkCost& cost) {
    detail::seconds_field(of, cost.message_seconds);
    detail::seconds_field(of, cost.byte_seconds);
  });
  detail::seconds_field(of, timing.compute);
  of.list(timing.ready, 0, max_ready_groups, [&of](double& time) { detail::seconds_field(of, time); });
}

inline void fields(Serializer& of, PlanSettings& settings) {
  std::uint64_t first = settings.caps.first_bucket_bytes;
  std::uint64_t bucket = settings.caps.bucket_bytes;
  auto variant = static_cast<std::uint8_t>(settings.variant);
  of.number(first);
  of.number(bucket);
  of.number(variant, 0, max_variants - 1);
  settings = {{static_cast<std::size_t>(first), static_cast<std::size_t>(bucket)}, variant};
}

inline void fields(Serializer& of, TrialTimes& times) {
  fields(of, times.planned);
  fields(of, times.given);
}

/// Last ready time of each group's gradients. @param ready_at by parameter
inline std::vector<double> grouped_times(std::span<const double> ready_at, std::span<const std::size_t> order) {
  std::vector<double> groups(std::min(order.size(), max_ready_groups), 0);
  for (std::size_t position = 0; position < order.size(); ++position) {
    double& group = groups[detail::group_of(position, order.size())];
    group = std::max(group, ready_at[order[position]]);
  }
  return groups;
}

/// Reverse of grouped_times. @param groups as many as grouped_times gives for this order @returns times by parameter
inline std::vector<double> times_of_parameters(std::span<const double> groups, std::span<const std::size_t> order) {
  std::vector<double> times(order.size());
  for (std::size_t position = 0; position < order.size(); ++position) {
    times[order[position]] = groups[detail::group_of(position, order.size())];
  }
  return times;
}

/// One step of all ranks, with the times of the last rank. Each variant's cost is the cost of the rank with the
/// shortest reductions, which has waited the least for other ranks.
/// @param timings at least one; all with as many variants and groups as the first
/// @param buckets,bytes of a plan, for which costs are compared
inline RankTiming combined(std::span<const RankTiming> timings, std::size_t buckets, std::size_t bytes) {
  const auto communication = [=](const LinkCost& cost) {
    return cost.seconds(static_cast<double>(buckets), static_cast<double>(bytes));
  };
  RankTiming all = timings.front();
  for (const RankTiming& timing : timings) {
    for (std::size_t variant = 0; variant < all.costs.size(); ++variant) {
      const LinkCost& cost = timing.costs[variant];
      if (communication(cost) < communication(all.costs[variant])) all.costs[variant] = cost;
    }
    all.compute = std::max(all.compute, timing.compute);
    for (std::size_t group = 0; group < all.ready.size(); ++group) {
      all.ready[group] = std::max(all.ready[group], timing.ready[group]);
    }
  }
  return all;
}

/// alpha and beta of a reduction, not negative, with the least sum of squared relative errors. Small and large buckets
/// have equal weight in this sum. Samples of one size give alpha 0. Samples that are not positive are ignored.
inline LinkCost fit_reduction_cost(std::span<const ReductionSample> samples) {
  double s = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;  // sums with the weights 1 / y^2
  for (const ReductionSample& sample : samples) {
    if (!(sample.bytes > 0) || !(sample.seconds > 0)) continue;
    const double weight = 1 / (sample.seconds * sample.seconds);
    s += weight;
    sx += weight * sample.bytes;
    sy += weight * sample.seconds;
    sxx += weight * sample.bytes * sample.bytes;
    sxy += weight * sample.bytes * sample.seconds;
  }
  if (s == 0) return {};
  const double determinant = s * sxx - sx * sx;
  const LinkCost through_zero{0, sxy / sxx};
  if (!(determinant > 1e-6 * s * sxx)) return through_zero;  // one size
  const LinkCost line{(sxx * sy - sx * sxy) / determinant, (s * sxy - sx * sy) / determinant};
  if (line.message_seconds < 0) return through_zero;
  return line.byte_seconds < 0 ? LinkCost{sy / s, 0} : line;
}

inline PlannedStep plan_step(const GradientTimes& gradients, const BucketCaps& caps, const LinkCost& cost) {
  const BucketPlan plan = plan_buckets(gradients.sizes, gradients.order, caps);
  const auto seconds = [&cost](std::size_t bytes) {
    return bytes == 0 ? 0 : cost.seconds(1, static_cast<double>(bytes));
  };
  return {caps, plan.buckets.size(), model_step(plan, gradients.ready_at, gradients.compute, seconds), 0};
}

/// Sizes with the shortest modelled step; pure. Among sizes within half a percent of the shortest step, the sizes with
/// the shortest communication are chosen; among equal sizes, the largest. `given` is kept if no sizes gain more than
/// 1%: the model is not more precise.
inline PlannedStep choose_caps(const GradientTimes& gradients, const BucketCaps& given, const LinkCost& cost) {
  std::vector<PlannedStep> steps;
  double shortest = std::numeric_limits<double>::max();
  for (const BucketCaps& caps :
       detail::candidate_caps(plan_buckets(gradients.sizes, gradients.order, given).arena_bytes)) {
    steps.push_back(plan_step(gradients, caps, cost));
    shortest = std::min(shortest, steps.back().times.step);
  }
  PlannedStep best = plan_step(gradients, given, cost);
  if (!(shortest < detail::gain * best.times.step)) return best;
  double least = std::numeric_limits<double>::max();
  for (const PlannedStep& step : steps) {
    if (step.times.step <= 1.005 * shortest && step.times.communication <= least) {
      least = step.times.communication;
      best = step;
    }
  }
  return best;
}

/// Result of choose_caps for the best variant; pure. The first variant is kept unless a later variant's step is shorter
/// by more than 1%.
/// @param costs by variant, at least one
inline PlannedStep choose_settings(const GradientTimes& gradients, const BucketCaps& given,
                                   std::span<const LinkCost> costs) {
  PlannedStep best = choose_caps(gradients, given, costs.front());
  for (std::size_t variant = 1; variant < costs.size(); ++variant) {
    const PlannedStep step = choose_caps(gradients, given, costs[variant]);
    if (!(step.times.step < detail::gain * best.times.step)) continue;
    best = step;
    best.variant = variant;
  }
  return best;
}

/// Sizes for measurements in addition to `given`, with reductions that differ from the reductions of `given` by a
/// factor of at least 2 if possible. Sizes are 1/512 of all bytes for the first bucket, 1/16 for others, and less at
/// the end; or all gradients in one bucket.
inline BucketCaps probing_caps(std::span<const GradientSize> sizes, std::span<const std::size_t> order,
                               const BucketCaps& given) {
  const std::size_t total = plan_buckets(sizes, order, given).arena_bytes;
  const BucketCaps small{total / 512, total / 16};
  std::size_t least = total;
  std::size_t most = 0;
  for (const BucketCaps& caps : {given, small}) {
    for (const PlannedBucket& bucket : plan_buckets(sizes, order, caps).buckets) {
      if (bucket.bytes != 0) least = std::min(least, bucket.bytes);
      most = std::max(most, bucket.bytes);
    }
  }
  return most >= 2 * least ? small : BucketCaps{total, total};
}

}  // namespace DTRAIN_NAMESPACE::ddp
