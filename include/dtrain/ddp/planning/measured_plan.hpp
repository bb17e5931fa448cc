#pragma once
/// @file
/// MeasuredPlan: measures the first steps, chooses the sizes of buckets, and goes back to the given ones if that was no
/// gain.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"
#include "dtrain/ddp/planning/step_profile.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// What a saved plan was made for. It is used again where all of it is the same.
struct PlanConditions {
  int world_size = 1;
  int ranks_on_host = 1;
  std::int64_t model = 0;  ///< digest of the gradients' sizes and types

  friend bool operator==(const PlanConditions&, const PlanConditions&) = default;
};

/// A plan as the numbers of a checkpoint.
struct SavedPlan {
  PlanConditions conditions;
  BucketCaps caps;

  SavedPlanNumbers numbers() const noexcept;
  /// Untrusted numbers. @returns nullopt if they are those of no plan
  static std::optional<SavedPlan> from(const SavedPlanNumbers& numbers) noexcept;
};

/// Digest of the gradients' sizes and types, in the model's order.
std::int64_t digest_of(std::span<const GradientSize> sizes);

/// What is done after which step:
///   1      takes the plan of a checkpoint that was loaded before, if its conditions hold, and ends
///   2      has measured with the given sizes; now sizes that the cost of reductions is measured with
///   3, 4   has measured with these; rank 0 chooses from all ranks' measurements; ends if it chooses the given sizes
///   24     has timed 20 steps with the chosen sizes; now the given ones again
///   29     has timed 5 steps with these: the sizes with the shorter median, of the slowest rank, stay; ends
class MeasuredPlan final : public BucketPlanner {
 public:
  /// Collective, blocking: rank 0 gets `own` of every rank, in rank order, and `choose` makes a text of them, which
  /// every rank gets. @param name used once
  using Choose = std::function<std::string(const std::vector<std::string>& texts)>;
  using Exchange = std::function<std::string(const char* name, const std::string& own, const Choose& choose)>;

  static constexpr std::uint64_t last_measured_step = 4;
  static constexpr std::size_t trial_steps = 20;
  static constexpr std::size_t given_steps = 5;

  MeasuredPlan(std::vector<GradientSize> sizes, const BucketCaps& given, const PlanConditions& conditions,
               Exchange exchange);

 private:
  std::optional<BucketPlan> plan_after(std::span<const std::size_t> order, const FinishedStep& step);
  std::optional<BucketPlan> adopt_saved();
  std::optional<BucketPlan> choose();
  std::optional<BucketPlan> after_trial_step(std::chrono::nanoseconds duration);
  std::optional<BucketPlan> end_trial();
  std::optional<BucketPlan> settle(const BucketCaps& caps);

  std::string choose_sizes(const std::vector<std::string>& texts) const;
  std::string compare_times(const std::vector<std::string>& texts) const;

  void add_profile(const FinishedStep& step, const BucketCaps& caps);
  BucketPlan plan_of(const BucketCaps& caps) const { return plan_buckets(sizes_, order_, caps); }

  std::vector<GradientSize> sizes_;
  std::vector<std::size_t> order_;
  BucketCaps given_;
  BucketCaps probing_;
  BucketCaps chosen_;
  PlanConditions conditions_;
  Exchange exchange_;
  std::uint64_t steps_ = 0;
  std::vector<StepProfile> profiles_;  ///< of steps 2 to 4
  std::array<std::chrono::nanoseconds, trial_steps + given_steps> durations_{};
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/planning/measured_plan_definitions.hpp"
#endif
