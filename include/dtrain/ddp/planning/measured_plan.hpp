#pragma once
/// @file
/// MeasuredPlan: measures the first steps, chooses the sizes of buckets and how they are reduced, and goes back to what
/// was given if that was no gain.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/algorithm_choice.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"
#include "dtrain/ddp/planning/saved_plan.hpp"
#include "dtrain/ddp/planning/step_profile.hpp"

namespace DTRAIN_NAMESPACE::ddp {

struct RankTiming;

/// What is done after which step:
///   1      takes the plan of a checkpoint that was loaded before, if its conditions hold, and ends
///   2      has measured with the given sizes; now sizes that the cost of reductions is measured with
///   3, 4   has measured with these; if there are more variants, now the next with these sizes
///   5, 6   has measured that variant, with these sizes and with the given ones; two steps more for each further one
///   L      was the last of these, 2 + 2 * variants: rank 0 chooses from all ranks' measurements; ends if it chooses
///          what is given, which is the given sizes and the first variant
///   L + 20 has timed 20 steps with the chosen plan; now what is given again
///   L + 25 has timed 5 steps with that: the plan with the shorter median, of the slowest rank, stays; ends
class MeasuredPlan final : public BucketPlanner {
 public:
  /// Collective, blocking: rank 0 gets `own` of every rank, in rank order, and `choose` makes a text of them, which
  /// every rank gets. @param name used once
  using Choose = std::function<std::string(const std::vector<std::string>& texts)>;
  using Exchange = std::function<std::string(const char* name, const std::string& own, const Choose& choose)>;

  static constexpr std::size_t trial_steps = 20;
  static constexpr std::size_t given_steps = 5;

  /// @param variants their names; empty: there is one way to reduce. Lifetime: of the names, static
  MeasuredPlan(std::vector<GradientSize> sizes, const BucketCaps& given, std::vector<const char*> variants,
               const PlanConditions& conditions, Exchange exchange);

 private:
  std::size_t variant_count() const noexcept { return variants_.empty() ? 1 : variants_.size(); }
  std::uint64_t last_measured_step() const noexcept { return 2 + 2 * variant_count(); }
  /// What a measured step, 2 to last_measured_step(), runs with.
  PlanSettings settings_of(std::uint64_t step) const noexcept;

  std::optional<BucketPlan> plan_after(std::span<const std::size_t> order, const FinishedStep& step);
  std::optional<BucketPlan> adopt_saved();
  std::optional<BucketPlan> after_measured_step(const FinishedStep& step);
  std::optional<BucketPlan> choose();
  std::optional<BucketPlan> after_trial_step(std::chrono::nanoseconds duration);
  std::optional<BucketPlan> end_trial();
  std::optional<BucketPlan> settle(const PlanSettings& settings);

  std::string usable_saved() const;
  std::string choose_settings_of(const std::vector<std::string>& texts) const;
  std::string compare_times(const std::vector<std::string>& texts) const;
  backend::LinkCost cost_of(std::size_t variant) const;
  RankTiming own_timing() const;
  PlanSettings settings_from(const std::string& text) const;

  BucketPlan plan_of(const BucketCaps& caps) const { return plan_buckets(sizes_, order_, caps); }
  BucketPlan use(const PlanSettings& settings);
  /// "Flat, first_bucket_bytes 1048576 and bucket_bytes 2097152"; without a name if there are no variants.
  std::string to_text(const PlanSettings& settings) const;

  std::vector<GradientSize> sizes_;
  std::vector<std::size_t> order_;
  PlanSettings given_;
  BucketCaps probing_;
  PlanSettings chosen_;
  std::vector<const char*> variants_;
  PlanConditions conditions_;
  Exchange exchange_;
  std::uint64_t steps_ = 0;
  std::vector<StepProfile> profiles_;  ///< of the measured steps
  std::array<std::chrono::nanoseconds, trial_steps + given_steps> durations_{};
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/planning/measured_plan_definitions.hpp"
#endif
