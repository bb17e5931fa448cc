#pragma once
/// @file
/// PlanChoice: whether the sizes of buckets and the way to reduce them are given, or chosen from measurements of the
/// first steps.

#include <memory>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::ddp {

class BucketPlanner;
struct PlannerSetup;

/// A planner that measures; see measured_plan.hpp. @throws Error (invalid_argument) beside DdpOptions::deterministic,
/// (unsupported) for gradients that are not in host memory
std::shared_ptr<BucketPlanner> make_measured_plan(const PlannerSetup& setup);

/// The choice has the function that makes its planner: a program that measures nothing has no code for it.
class PlanChoice {
 public:
  using Make = std::shared_ptr<BucketPlanner> (*)(const PlannerSetup&);

  /// Buckets of the sizes in DdpOptions, reduced as the policy and GroupOptions say.
  constexpr PlanChoice() noexcept = default;

  /// The sizes, and of a policy with several ways the way, with the shortest step by the measurements of the first
  /// steps. DdpOptions::plan has the conditions.
  static constexpr PlanChoice measured() noexcept {
    PlanChoice choice;
    choice.make_ = &make_measured_plan;
    return choice;
  }

  constexpr bool is_measured() const noexcept { return make_ != nullptr; }
  /// Null unless is_measured().
  constexpr Make make() const noexcept { return make_; }

 private:
  Make make_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::PlanChoice;
}  // namespace DTRAIN_NAMESPACE
