#pragma once
/// @file
/// BucketPlanner: interface that changes a wrapper's bucket plan and all_reduce variant between first steps.
/// PlannerSetup: its arguments. plan_state(): for checkpoints.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/driver_access.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/group/group_handle.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A step that has ended on this rank.
struct FinishedStep {
  std::uint64_t number;               ///< number of the step, as in its records
  std::chrono::nanoseconds duration;  ///< time from begin() to the end of finish()
  const StepRecorder& recorder;       ///< recorder with the step's records
};

/// A plan as the numbers of a checkpoint: see SavedPlan in saved_plan.hpp. Zeros: no plan yet.
using SavedPlanNumbers = std::array<std::int64_t, 6>;

/// Threads: the thread that drives the steps. Not movable: a checkpoint's tensors refer to its numbers.
/// The class has a function pointer and no virtual function. g++ would put a virtual function's only implementation
/// into each program that may call it, even without a planner (-fdevirtualize-speculatively).
class BucketPlanner {
 public:
  BucketPlanner(const BucketPlanner&) = delete;

  /// Collective, blocking in some steps: after each step that reduces, until is_settled(). Every rank gets the same
  /// plan after the same step.
  /// @param order the parameters' ready order if it has changed; else empty
  /// @returns the plan of the next steps; nullopt: the present plan
  std::optional<BucketPlan> after_step(std::span<const std::size_t> order, const FinishedStep& step) {
    return after_step_(*this, order, step);
  }

  bool is_settled() const noexcept { return is_settled_; }
  /// The variant of all_reduce for the next steps, a position in PlannerSetup::variants; 0 without variants.
  std::size_t variant() const noexcept { return variant_; }
  /// Whether each ready() of the next step is to be recorded.
  bool wants_ready_times() const noexcept { return wants_ready_times_; }
  /// Numbers for a checkpoint. A settled plan keeps its numbers when a checkpoint with other numbers is loaded.
  SavedPlanNumbers& saved() noexcept {
    if (is_settled_) saved_ = settled_;
    return saved_;
  }

 protected:
  using AfterStep = std::optional<BucketPlan> (*)(BucketPlanner& planner, std::span<const std::size_t> order,
                                                  const FinishedStep& step);

  explicit BucketPlanner(AfterStep function) noexcept : after_step_(function) {}
  ~BucketPlanner() = default;

  bool is_settled_ = false;
  bool wants_ready_times_ = false;
  std::size_t variant_ = 0;
  SavedPlanNumbers saved_{};    ///< those of a loaded checkpoint, until the plan is settled
  SavedPlanNumbers settled_{};  ///< valid once the plan is settled

 private:
  AfterStep after_step_;
};

/// Arguments of a planner's construction. Lifetime: its references are valid during the call that gets it.
struct PlannerSetup {
  const DdpOptions& options;
  std::span<const Parameter> parameters;
  bool binds_gradients;  ///< whether the model binds its gradients
  const std::shared_ptr<const group::GroupHandle>& group;
  const std::string& prefix;            ///< prefix of this wrapper's keys
  std::vector<const char*> variants{};  ///< variants of the wrapper's communicator: see backend::HasVariants
};

/// @throws Error (invalid_argument): the present plan cannot be kept, because it is still measured
[[noreturn]] void refuse_to_keep_plan();

NamedTensor plan_tensor(BucketPlanner* planner);

/// The measured plan as a tensor for save_checkpoint and load_checkpoint. A plan that is loaded before the first step
/// is used from the second step on, and no steps are measured. Conditions: the same number of ranks, in the job and on
/// rank 0's host; the same gradients; the same variants of all_reduce. Lifetime: refers to memory of `ddp`. @throws
/// Error (invalid_argument) without PlanChoice::measured()
/// @ingroup training
template <class Ddp>
NamedTensor plan_state(Ddp& ddp) {
  return plan_tensor(DriverAccess::of(ddp).reducer->planner());
}

#if DTRAIN_DEFINITIONS

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_to_keep_plan() {
  throw_error(
      Errc::invalid_argument,
      "a ShardedOptimizer keeps the buckets of its wrapper, but DdpOptions::plan still measures to change them; "
      "construct it after 33 steps, or the wrapper without DdpOptions::plan");
}

DTRAIN_DEFINED NamedTensor plan_tensor(BucketPlanner* planner) {
  if (planner == nullptr) {
    throw_error(Errc::invalid_argument,
                "plan_state() got a wrapper whose buckets are not measured; set DdpOptions::plan to "
                "PlanChoice::measured()");
  }
  return {"dtrain bucket plan", tensor_view(planner->saved())};
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::plan_state;
}  // namespace DTRAIN_NAMESPACE
