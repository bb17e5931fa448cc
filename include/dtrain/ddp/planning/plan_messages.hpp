#pragma once
/// @file
/// Messages of the ranks for the choice of a bucket plan, and their combination on rank 0.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/backend/algorithm_choice.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/planning/saved_plan.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Bound for the ready times that rank 0 reads from each rank. With more parameters, a rank sends the last ready time
/// of each of 256 groups of successive parameters.
inline constexpr std::size_t max_ready_groups = 256;

/// Measurements of one rank.
struct RankTiming {
  std::vector<backend::LinkCost> costs;  ///< by variant
  double compute = 0;                    ///< seconds from a step's begin
  std::vector<double> ready;             ///< by group, in the ready order; all `compute` if no bucket starts before it
};

void fields(Serializer& of, RankTiming& timing);
void fields(Serializer& of, PlanSettings& settings);

/// Last ready time of each group's gradients. @param ready_at by parameter
std::vector<double> grouped_times(std::span<const double> ready_at, std::span<const std::size_t> order);

/// Reverse of grouped_times. @param groups as many as grouped_times gives for this order @returns times by parameter
std::vector<double> times_of_parameters(std::span<const double> groups, std::span<const std::size_t> order);

/// One step of all ranks, with the times of the last rank. Each variant's cost is the cost of the rank with the
/// shortest reductions, which has waited the least for other ranks.
/// @param timings at least one; all with as many variants and groups as the first
/// @param buckets,bytes of a plan, for which costs are compared
RankTiming combined(std::span<const RankTiming> timings, std::size_t buckets, std::size_t bytes);

/// Medians of the duration of steps.
struct TrialTimes {
  std::chrono::nanoseconds planned{};
  std::chrono::nanoseconds given{};
};

void fields(Serializer& of, TrialTimes& times);

#if DTRAIN_DEFINITIONS

namespace detail {

/// A time or cost; from untrusted bytes it comes finite and not negative.
inline void seconds_field(Serializer& of, double& value) {
  auto bits = std::bit_cast<std::uint64_t>(value);
  of.number(bits);
  value = std::bit_cast<double>(bits);
  if (!kernels::is_finite(value) || value < 0) of.fail("has a time that is none");
}

inline std::size_t group_of(std::size_t position, std::size_t parameters) noexcept {
  return parameters <= max_ready_groups ? position : position * max_ready_groups / parameters;
}

}  // namespace detail

DTRAIN_DEFINED void fields(Serializer& of, RankTiming& timing) {
  of.list(timing.costs, 1, max_variants, [&of](backend::LinkCost& cost) {
    detail::seconds_field(of, cost.message_seconds);
    detail::seconds_field(of, cost.byte_seconds);
  });
  detail::seconds_field(of, timing.compute);
  of.list(timing.ready, 0, max_ready_groups, [&of](double& time) { detail::seconds_field(of, time); });
}

DTRAIN_DEFINED void fields(Serializer& of, PlanSettings& settings) {
  std::uint64_t first = settings.caps.first_bucket_bytes;
  std::uint64_t bucket = settings.caps.bucket_bytes;
  auto variant = static_cast<std::uint8_t>(settings.variant);
  of.number(first);
  of.number(bucket);
  of.number(variant, 0, max_variants - 1);
  settings = {{static_cast<std::size_t>(first), static_cast<std::size_t>(bucket)}, variant};
}

DTRAIN_DEFINED void fields(Serializer& of, TrialTimes& times) {
  fields(of, times.planned);
  fields(of, times.given);
}

DTRAIN_DEFINED std::vector<double> grouped_times(std::span<const double> ready_at, std::span<const std::size_t> order) {
  std::vector<double> groups(std::min(order.size(), max_ready_groups), 0);
  for (std::size_t position = 0; position < order.size(); ++position) {
    double& group = groups[detail::group_of(position, order.size())];
    group = std::max(group, ready_at[order[position]]);
  }
  return groups;
}

DTRAIN_DEFINED std::vector<double> times_of_parameters(std::span<const double> groups,
                                                       std::span<const std::size_t> order) {
  std::vector<double> times(order.size());
  for (std::size_t position = 0; position < order.size(); ++position) {
    times[order[position]] = groups[detail::group_of(position, order.size())];
  }
  return times;
}

DTRAIN_DEFINED RankTiming combined(std::span<const RankTiming> timings, std::size_t buckets, std::size_t bytes) {
  const auto communication = [=](const backend::LinkCost& cost) {
    return cost.seconds(static_cast<double>(buckets), static_cast<double>(bytes));
  };
  RankTiming all = timings.front();
  for (const RankTiming& timing : timings) {
    for (std::size_t variant = 0; variant < all.costs.size(); ++variant) {
      const backend::LinkCost& cost = timing.costs[variant];
      if (communication(cost) < communication(all.costs[variant])) all.costs[variant] = cost;
    }
    all.compute = std::max(all.compute, timing.compute);
    for (std::size_t group = 0; group < all.ready.size(); ++group) {
      all.ready[group] = std::max(all.ready[group], timing.ready[group]);
    }
  }
  return all;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
