#pragma once
/// @file
/// plan_state(): a wrapper's measured bucket plan, as a tensor for checkpoints.

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"

namespace DTRAIN_NAMESPACE::ddp {

NamedTensor plan_tensor(BucketPlanner* planner);

/// For save_checkpoint and load_checkpoint. If it is loaded before the first step, with as many ranks, as many of them
/// on rank 0's host, for the same gradients and the same ways to reduce them, the plan is used from the second step on,
/// and steps are not measured (thresholds of Mpi and Gloo are: GroupOptions::algorithms). Lifetime: refers to memory of
/// `ddp`. @throws Error (invalid_argument) without PlanChoice::measured()
template <class Ddp>
NamedTensor plan_state(Ddp& ddp) {
  return plan_tensor(ddp.reducer().planner());
}

#if DTRAIN_DEFINITIONS

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
