#pragma once
/// @file
/// Definitions of MeasuredPlan and make_measured_plan.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/planning/measured_plan.hpp"
#include "dtrain/ddp/planning/plan_messages.hpp"
#include "dtrain/ddp/planning/plan_search.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED SavedPlanNumbers SavedPlan::numbers() const noexcept {
  constexpr std::size_t most = std::numeric_limits<std::int64_t>::max();
  return {1,
          conditions.world_size,
          conditions.ranks_on_host,
          conditions.model,
          static_cast<std::int64_t>(std::min(caps.first_bucket_bytes, most)),
          static_cast<std::int64_t>(std::min(caps.bucket_bytes, most))};
}

DTRAIN_DEFINED std::optional<SavedPlan> SavedPlan::from(const SavedPlanNumbers& numbers) noexcept {
  const auto [format, world_size, ranks_on_host, model, first, bucket] = numbers;
  constexpr std::int64_t most_ranks = std::int64_t{1} << 30;
  if (format != 1 || world_size < 1 || world_size > most_ranks || ranks_on_host < 1 || ranks_on_host > most_ranks ||
      first < 0 || bucket < 0) {
    return std::nullopt;
  }
  return SavedPlan{{static_cast<int>(world_size), static_cast<int>(ranks_on_host), model},
                   {static_cast<std::size_t>(first), static_cast<std::size_t>(bucket)}};
}

DTRAIN_DEFINED std::int64_t digest_of(std::span<const GradientSize> sizes) {
  Serializer writer;
  for (const GradientSize& size : sizes) {
    auto bytes = static_cast<std::uint64_t>(size.bytes);
    DType dtype = size.dtype;
    writer.number(bytes);
    writer.choice(dtype, first_dtype, last_dtype);
  }
  const Sha256Digest digest = Sha256().update(writer.characters()).digest();
  std::int64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof number);
  return number;
}

namespace detail {

inline bool are_equal(const BucketCaps& one, const BucketCaps& other) noexcept {
  return one.first_bucket_bytes == other.first_bucket_bytes && one.bucket_bytes == other.bucket_bytes;
}

template <class T>
T median(std::span<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// "12.345 ms".
inline std::string milliseconds(double seconds) {
  char text[48];
  std::snprintf(text, sizeof text, "%.5g ms", seconds * 1e3);
  return text;
}

inline double seconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// "19 buckets".
inline std::string buckets_text(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " bucket" : " buckets");
}

/// "first_bucket_bytes 1048576 and bucket_bytes 2097152".
inline std::string to_text(const BucketCaps& caps) {
  return format_text("first_bucket_bytes {} and bucket_bytes {}", {caps.first_bucket_bytes, caps.bucket_bytes});
}

/// The times of each parameter that are the median of the profiles'.
inline std::vector<double> median_ready_times(std::span<const StepProfile> profiles) {
  std::vector<double> times(profiles.front().ready_at.size());
  std::vector<double> of_one(profiles.size());
  for (std::size_t parameter = 0; parameter < times.size(); ++parameter) {
    std::transform(profiles.begin(), profiles.end(), of_one.begin(),
                   [parameter](const StepProfile& profile) { return profile.ready_at[parameter]; });
    times[parameter] = median(std::span(of_one));
  }
  return times;
}

}  // namespace detail

DTRAIN_DEFINED MeasuredPlan::MeasuredPlan(std::vector<GradientSize> sizes, const BucketCaps& given,
                                          const PlanConditions& conditions, Exchange exchange)
    : BucketPlanner([](BucketPlanner& planner, std::span<const std::size_t> order, const FinishedStep& step) {
        return static_cast<MeasuredPlan&>(planner).plan_after(order, step);
      }),
      sizes_(std::move(sizes)),
      order_(reverse_order(sizes_.size())),
      given_(given),
      conditions_(conditions),
      exchange_(std::move(exchange)) {}

DTRAIN_DEFINED std::optional<BucketPlan> MeasuredPlan::plan_after(std::span<const std::size_t> order,
                                                                  const FinishedStep& step) {
  if (!order.empty()) order_.assign(order.begin(), order.end());
  switch (++steps_) {
    case 1: return adopt_saved();
    case 2:
      add_profile(step, given_);
      probing_ = probing_caps(sizes_, order_, given_);
      return plan_of(probing_);
    case 3: add_profile(step, probing_); return std::nullopt;
    case last_measured_step: add_profile(step, probing_); return choose();
    default: return after_trial_step(step.duration);
  }
}

DTRAIN_DEFINED void MeasuredPlan::add_profile(const FinishedStep& step, const BucketCaps& caps) {
  profiles_.push_back(
      step_profile(step.recorder.records(step.number), step.number, sizes_.size(), plan_of(caps).buckets.size()));
}

DTRAIN_DEFINED std::optional<BucketPlan> MeasuredPlan::adopt_saved() {
  const auto usable = [this](const std::vector<std::string>&) -> std::string {
    const std::optional<SavedPlan> saved = SavedPlan::from(saved_);
    if (!saved) return {};
    if (saved->conditions != conditions_) {
      log(LogLevel::info,
          "the bucket plan of the checkpoint is for other ranks or another model, and is measured anew");
      return {};
    }
    log(LogLevel::info, format_text("bucket plan of the checkpoint: {}", {detail::to_text(saved->caps)}));
    return to_bytes(saved->caps);
  };
  const std::string found = exchange_("saved", {}, usable);
  if (!found.empty()) return settle(from_bytes<BucketCaps>(found, "rank 0's saved bucket plan"));
  if (std::count_if(sizes_.begin(), sizes_.end(), [](const GradientSize& size) { return size.bytes != 0; }) < 2) {
    return settle(given_);  // there is one plan only
  }
  wants_ready_times_ = true;
  return std::nullopt;
}

DTRAIN_DEFINED std::optional<BucketPlan> MeasuredPlan::choose() {
  wants_ready_times_ = false;
  std::vector<ReductionSample> samples;
  const auto add_samples = [&](const BucketCaps& caps, std::span<const StepProfile> profiles) {
    const BucketPlan plan = plan_of(caps);
    for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      double shortest = profiles[0].bucket_seconds[bucket];
      for (const StepProfile& profile : profiles) {
        shortest = std::min(shortest, profile.bucket_seconds[bucket]);
      }
      samples.push_back({static_cast<double>(plan.buckets[bucket].bytes), shortest});
    }
  };
  const std::span<StepProfile> profiles(profiles_);
  add_samples(given_, profiles.first(1));
  add_samples(probing_, profiles.subspan(1));

  RankTiming own;
  own.cost = fit_reduction_cost(samples);
  std::array<double, 3> compute{profiles[0].compute, profiles[1].compute, profiles[2].compute};
  own.compute = detail::median(std::span<double>(compute));
  own.ready = grouped_times(detail::median_ready_times(profiles), order_);
  if (std::none_of(profiles.begin(), profiles.end(), [](const StepProfile& profile) { return profile.overlaps; })) {
    std::fill(own.ready.begin(), own.ready.end(), own.compute);
  }
  profiles_ = {};
  const std::string found =
      exchange_("sizes", to_bytes(own), [this](const auto& texts) { return choose_sizes(texts); });
  chosen_ = from_bytes<BucketCaps>(found, "rank 0's bucket plan");
  return detail::are_equal(chosen_, given_) ? settle(given_) : plan_of(chosen_);
}

DTRAIN_DEFINED std::string MeasuredPlan::choose_sizes(const std::vector<std::string>& texts) const {
  std::vector<RankTiming> timings;
  for (const std::string& text : texts) {
    timings.push_back(from_bytes<RankTiming>(text, "a rank's measurement"));
    if (timings.back().ready.size() != timings.front().ready.size()) {
      throw_error(Errc::protocol, "a rank has measured {} gradients, not {}; do all ranks run the same program?",
                  {timings.back().ready.size(), timings.front().ready.size()});
    }
  }
  const BucketPlan plan = plan_of(given_);
  const RankTiming all = combined(timings, plan.buckets.size(), plan.arena_bytes);
  const std::vector<double> ready_at = times_of_parameters(all.ready, order_);
  const GradientTimes gradients{sizes_, order_, ready_at, all.compute};
  const PlannedStep given = plan_step(gradients, given_, all.cost);
  const PlannedStep best = choose_caps(gradients, given_, all.cost);
  log(LogLevel::info,
      format_text("bucket plan measured: a reduction costs {}, a rank computes for {}: {} give {}, a step of {} by the "
                  "model; the given sizes {}, {}",
                  {to_string(all.cost), detail::milliseconds(all.compute), detail::to_text(best.caps),
                   detail::buckets_text(best.buckets), detail::milliseconds(best.times.step),
                   detail::buckets_text(given.buckets), detail::milliseconds(given.times.step)}));
  return to_bytes(best.caps);
}

DTRAIN_DEFINED std::optional<BucketPlan> MeasuredPlan::after_trial_step(std::chrono::nanoseconds duration) {
  const auto trial_step = static_cast<std::size_t>(steps_ - last_measured_step);
  durations_[trial_step - 1] = duration;
  if (trial_step == trial_steps) return plan_of(given_);
  return trial_step == trial_steps + given_steps ? end_trial() : std::nullopt;
}

DTRAIN_DEFINED std::optional<BucketPlan> MeasuredPlan::end_trial() {
  const std::span<std::chrono::nanoseconds> durations(durations_);
  const TrialTimes own{detail::median(durations.first(trial_steps)), detail::median(durations.subspan(trial_steps))};
  const std::string found =
      exchange_("trial", to_bytes(own), [this](const auto& texts) { return compare_times(texts); });
  return settle(from_bytes<BucketCaps>(found, "rank 0's bucket plan"));
}

DTRAIN_DEFINED std::string MeasuredPlan::compare_times(const std::vector<std::string>& texts) const {
  TrialTimes slowest;
  for (const std::string& text : texts) {
    const auto times = from_bytes<TrialTimes>(text, "a rank's times");
    slowest = {std::max(slowest.planned, times.planned), std::max(slowest.given, times.given)};
  }
  const bool is_slower = slowest.planned > slowest.given;
  log(LogLevel::info,
      format_text("bucket plan {}: a step takes {} with it, {} as given",
                  {is_slower ? "given up" : "kept", detail::milliseconds(detail::seconds_of(slowest.planned)),
                   detail::milliseconds(detail::seconds_of(slowest.given))}));
  return to_bytes(is_slower ? given_ : chosen_);
}

DTRAIN_DEFINED std::optional<BucketPlan> MeasuredPlan::settle(const BucketCaps& caps) {
  is_settled_ = true;
  saved_ = settled_ = SavedPlan{conditions_, caps}.numbers();
  return plan_of(caps);
}

DTRAIN_DEFINED std::shared_ptr<BucketPlanner> make_measured_plan(const PlannerSetup& setup) {
  if (setup.options.deterministic) {
    throw_error(Errc::invalid_argument,
                "DdpOptions::deterministic keeps the first bucket plan, which DdpOptions::plan is to change by "
                "measurements; set one of them");
  }
  for (const Parameter& parameter : setup.parameters) {
    if (parameter.gradient.device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported,
                  "DdpOptions::plan measures how gradients in host memory are reduced, but one is on {}; set "
                  "DdpOptions::bucket_bytes instead",
                  {to_string(parameter.gradient.device)});
    }
    if (!setup.binds_gradients && parameter.gradient.data == nullptr && parameter.gradient.bytes() != 0) {
      throw_error(Errc::invalid_argument,
                  "DdpOptions::plan measures steps without a ShardedOptimizer, which gradients without memory need; "
                  "set DdpOptions::bucket_bytes instead");
    }
  }
  std::vector<GradientSize> sizes = gradient_sizes(setup.parameters);
  const rendezvous::Membership& members = setup.members;
  const PlanConditions conditions{members.world_size, members.local_world_size, digest_of(sizes)};
  const auto exchange = [store = setup.store, members, prefix = setup.prefix + "plan/", context = setup.context,
                         start_pending = setup.start_pending](const char* name, const std::string& own,
                                                              const MeasuredPlan::Choose& choose) {
    const auto name_of = [&](int rank) { return "rank " + std::to_string(members.rank_in_job(rank)); };
    start_pending();  // other ranks may wait for this work before they come here
    try {
      return backend::store_gather(
          {store, members.rank, members.world_size, context.rank, Deadline::after(context.timeout),
           "choosing the sizes of buckets", name_of},
          prefix + name, [&] { return own; }, choose);
    } catch (const Error&) {
      context.latch->throw_if_failed(context.rank);  // the first cause names its rank
      throw;
    }
  };
  return std::make_shared<MeasuredPlan>(std::move(sizes), setup.options.caps(), conditions, exchange);
}

}  // namespace DTRAIN_NAMESPACE::ddp
