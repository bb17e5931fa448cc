#pragma once
/// @file
/// MeasuredPlan: BucketPlanner that measures the first steps and chooses bucket sizes and variant, if they gain.

#include <cstddef>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Steps that MeasuredPlan, which make_measured_plan makes, times with the chosen plan, and then with the given one.
inline constexpr std::size_t plan_trial_steps = 20;
inline constexpr std::size_t given_plan_steps = 5;

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/planning/plan_search.hpp"
#include "dtrain/ddp/planning/saved_plan.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

template <class T>
T median(std::span<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// "alpha 2e-06 s, beta 1e-10 s/byte".
inline std::string cost_text(const LinkCost& cost) {
  return format_text("alpha {} s, beta {} s/byte",
                     {number_text(cost.message_seconds, 3), number_text(cost.byte_seconds, 3)});
}

/// "12.345 ms".
inline std::string milliseconds(double seconds) {
  return number_text(seconds * 1e3, 5) + " ms";
}

inline double seconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// "19 buckets".
inline std::string buckets_text(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " bucket" : " buckets");
}

/// Median ready time of each parameter over the profiles.
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

/// Bucket planner by measurements. The work after each step, where L is the last measured step, 2 + 2 * variants:
///   1      adopts the plan of a checkpoint that was loaded before, if its conditions hold, and ends
///   2      the given sizes are measured; step 3 uses probing sizes
///   3, 4   the probing sizes are measured; if there are more variants, step 5 uses the next variant
///   5, 6   variant 1 is measured with the probing sizes and with the given sizes; two steps more for each further one
///   L      rank 0 chooses from all ranks' measurements; ends if it chooses the given sizes and the first variant
///   L + 20 20 steps with the chosen plan are timed; the next step uses the given plan
///   L + 25 5 steps with the given plan are timed; the plan with the shorter median, of the slowest rank, stays; ends
class MeasuredPlan final : public BucketPlanner {
 public:
  explicit MeasuredPlan(const PlannerSetup& setup)
      : BucketPlanner([](BucketPlanner& planner, std::span<const std::size_t> order, const FinishedStep& step) {
          return static_cast<MeasuredPlan&>(planner).plan_after(order, step);
        }),
        group_(setup.group),
        prefix_(setup.prefix + "plan/"),
        sizes_(gradient_sizes(setup.parameters)),
        order_(reverse_order(sizes_.size())),
        given_{setup.options.caps()},
        variants_(setup.variants),
        conditions_{group_->members().world_size, group_->members().local_world_size, digest_of(sizes_, variants_)} {}

 private:
  std::size_t variant_count() const noexcept { return variants_.empty() ? 1 : variants_.size(); }
  std::uint64_t last_measured_step() const noexcept { return 2 + 2 * variant_count(); }

  std::optional<BucketPlan> plan_after(std::span<const std::size_t> order, const FinishedStep& step) {
    if (!order.empty()) order_.assign(order.begin(), order.end());
    if (++steps_ == 1) return adopt_saved();
    return steps_ <= last_measured_step() ? after_measured_step(step) : after_trial_step(step.duration);
  }

  std::optional<BucketPlan> adopt_saved() {
    const std::string found = exchange("saved", {}, [this](const auto&) { return usable_saved(); });
    if (!found.empty()) return settle(settings_from(found));
    const auto gradients =
        std::count_if(sizes_.begin(), sizes_.end(), [](const GradientSize& size) { return size.bytes != 0; });
    if (gradients == 0 || (gradients == 1 && variants_.empty())) return settle(given_);  // there is only one plan
    wants_ready_times_ = true;
    return std::nullopt;
  }

  std::string usable_saved() const {
    const std::optional<SavedPlan> saved = SavedPlan::from(saved_);
    if (!saved) return {};
    if (saved->conditions != conditions_ || saved->settings.variant >= variant_count()) {
      log(LogLevel::info,
          "the bucket plan of the checkpoint is for other ranks, another model or another topology, and is measured "
          "anew");
      return {};
    }
    log(LogLevel::info, format_text("bucket plan of the checkpoint: {}", {to_text(saved->settings)}));
    return to_bytes(saved->settings);
  }

  std::optional<BucketPlan> after_measured_step(const FinishedStep& step) {
    const std::size_t buckets = plan_of(settings_of(steps_).caps).buckets.size();
    profiles_.push_back(step_profile(step.recorder.records(step.number), step.number, sizes_.size(), buckets));
    if (steps_ == last_measured_step()) return choose();
    if (steps_ == 2) probing_ = probing_caps(sizes_, order_, given_.caps);
    return use(settings_of(steps_ + 1));
  }

  std::optional<BucketPlan> choose() {
    wants_ready_times_ = false;
    const RankTiming own = own_timing();
    profiles_ = {};
    const std::string found =
        exchange("sizes", to_bytes(own), [this](const auto& texts) { return choose_settings_of(texts); });
    chosen_ = settings_from(found);
    return chosen_ == given_ ? settle(given_) : use(chosen_);
  }

  std::string choose_settings_of(const std::vector<std::string>& texts) const {
    std::vector<RankTiming> timings;
    for (const std::string& text : texts) {
      const RankTiming& timing = timings.emplace_back(from_bytes<RankTiming>(text, "a rank's measurement"));
      if (timing.ready.size() != timings.front().ready.size() || timing.costs.size() != variant_count()) {
        throw_error(
            Errc::protocol,
            "a rank has measured {} groups of gradients in {} ways, not {} in {}; do all ranks run one program?",
            {timing.ready.size(), timing.costs.size(), timings.front().ready.size(), variant_count()});
      }
    }
    const BucketPlan plan = plan_of(given_.caps);
    const RankTiming all = combined(timings, plan.buckets.size(), plan.arena_bytes);
    const std::vector<double> ready_at = times_of_parameters(all.ready, order_);
    const GradientTimes gradients{sizes_, order_, ready_at, all.compute};
    const PlannedStep given = plan_step(gradients, given_.caps, all.costs.front());
    const PlannedStep best = choose_settings(gradients, given_.caps, all.costs);
    const PlanSettings settings{best.caps, best.variant};
    std::string costs = detail::cost_text(all.costs.front());
    for (std::size_t variant = 0; variant < variants_.size(); ++variant) {
      const std::string cost = format_text("{} by {}", {detail::cost_text(all.costs[variant]), variants_[variant]});
      costs = variant == 0 ? cost : format_text("{}, {}", {costs, cost});
    }
    log(LogLevel::info,
        format_text(
            "bucket plan measured: a reduction costs {}, a rank computes for {}: {} give {}, a step of {} by the "
            "model; the given sizes {}, {}",
            {costs, detail::milliseconds(all.compute), to_text(settings), detail::buckets_text(best.buckets),
             detail::milliseconds(best.times.step), detail::buckets_text(given.buckets),
             detail::milliseconds(given.times.step)}));
    return to_bytes(settings);
  }

  std::optional<BucketPlan> after_trial_step(std::chrono::nanoseconds duration) {
    const auto trial_step = static_cast<std::size_t>(steps_ - last_measured_step());
    durations_[trial_step - 1] = duration;
    if (trial_step == plan_trial_steps) return use(given_);
    return trial_step == plan_trial_steps + given_plan_steps ? end_trial() : std::nullopt;
  }

  std::optional<BucketPlan> end_trial() {
    const std::span<std::chrono::nanoseconds> durations(durations_);
    const TrialTimes own{detail::median(durations.first(plan_trial_steps)),
                         detail::median(durations.subspan(plan_trial_steps))};
    return settle(
        settings_from(exchange("trial", to_bytes(own), [this](const auto& texts) { return compare_times(texts); })));
  }

  std::string compare_times(const std::vector<std::string>& texts) const {
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

  std::optional<BucketPlan> settle(const PlanSettings& settings) {
    is_settled_ = true;
    saved_ = settled_ = SavedPlan{conditions_, settings}.numbers();
    return use(settings);
  }

  /// Settings of a measured step, 2 to last_measured_step().
  PlanSettings settings_of(std::uint64_t step) const noexcept {
    const std::uint64_t variant = step <= 4 ? 0 : (step - 3) / 2;
    const bool is_given = step == 2 || (variant > 0 && step % 2 == 0);
    return {is_given ? given_.caps : probing_, static_cast<std::size_t>(variant)};
  }

  BucketPlan plan_of(const BucketCaps& caps) const { return plan_buckets(sizes_, order_, caps); }

  BucketPlan use(const PlanSettings& settings) {
    variant_ = settings.variant;
    return plan_of(settings.caps);
  }

  RankTiming own_timing() const {
    RankTiming own;
    std::vector<double> compute;
    for (const StepProfile& profile : profiles_)
      compute.push_back(profile.compute);
    for (std::size_t variant = 0; variant < variant_count(); ++variant)
      own.costs.push_back(cost_of(variant));
    own.compute = detail::median(std::span<double>(compute));
    own.ready = grouped_times(detail::median_ready_times(profiles_), order_);
    if (std::none_of(profiles_.begin(), profiles_.end(), [](const StepProfile& profile) { return profile.overlaps; })) {
      std::fill(own.ready.begin(), own.ready.end(), own.compute);
    }
    return own;
  }

  LinkCost cost_of(std::size_t variant) const {
    std::vector<ReductionSample> samples;
    for (const BucketCaps& caps : {given_.caps, probing_}) {
      const BucketPlan plan = plan_of(caps);
      std::vector<double> shortest(plan.buckets.size(), std::numeric_limits<double>::max());
      for (std::size_t i = 0; i < profiles_.size(); ++i) {
        if (settings_of(i + 2) != PlanSettings{caps, variant}) continue;
        for (std::size_t bucket = 0; bucket < shortest.size(); ++bucket)
          shortest[bucket] = std::min(shortest[bucket], profiles_[i].bucket_seconds[bucket]);
      }
      for (std::size_t bucket = 0; bucket < shortest.size(); ++bucket)
        samples.push_back({static_cast<double>(plan.buckets[bucket].bytes), shortest[bucket]});
    }
    return fit_reduction_cost(samples);
  }

  PlanSettings settings_from(const std::string& text) const {
    const auto settings = from_bytes<PlanSettings>(text, "rank 0's bucket plan");
    if (settings.variant >= variant_count()) {
      throw_error(Errc::protocol, "rank 0 reduces in way {} of {}; do all ranks run the same program?",
                  {settings.variant + 1, variant_count()});
    }
    return settings;
  }

  /// "Flat, first_bucket_bytes 1048576 and bucket_bytes 2097152"; without the variant's name if there are no variants.
  std::string to_text(const PlanSettings& settings) const {
    const std::string caps = format_text("first_bucket_bytes {} and bucket_bytes {}",
                                         {settings.caps.first_bucket_bytes, settings.caps.bucket_bytes});
    return variants_.empty() ? caps : format_text("{}, {}", {variants_[settings.variant], caps});
  }

  /// Collective, blocking: every rank gets the text that `choose` makes on rank 0 of the texts of all ranks.
  std::string exchange(const char* purpose, const std::string& own, const backend::CombineTexts& choose) const {
    return group_->gather(
        prefix_ + purpose, "choosing the bucket plan", [&] { return own; }, choose);
  }

  std::shared_ptr<const group::GroupHandle> group_;
  std::string prefix_;
  std::vector<GradientSize> sizes_;
  std::vector<std::size_t> order_;
  PlanSettings given_;
  BucketCaps probing_;
  PlanSettings chosen_;
  std::vector<const char*> variants_;  ///< names of the variants of all_reduce; empty: there is only one
  PlanConditions conditions_;
  std::uint64_t steps_ = 0;
  std::vector<StepProfile> profiles_;  ///< profiles of the measured steps
  std::array<std::chrono::nanoseconds, plan_trial_steps + given_plan_steps> durations_{};
};

DTRAIN_DEFINED std::shared_ptr<BucketPlanner> make_measured_plan(const PlannerSetup& setup) {
  if (setup.options.deterministic) {
    throw_error(Errc::invalid_argument,
                "DdpOptions::deterministic keeps the first bucket plan, which DdpOptions::plan is to change by "
                "measurements; set one of them");
  }
  if (setup.variants.size() > max_variants) {
    throw_error(Errc::unsupported,
                "DdpOptions::plan measures up to {} ways to reduce, but the backend offers {}; set "
                "DdpOptions::bucket_bytes instead",
                {max_variants, setup.variants.size()});
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
  return std::make_shared<MeasuredPlan>(setup);
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
