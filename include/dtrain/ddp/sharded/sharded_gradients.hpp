#pragma once
/// @file
/// ShardedGradients: what a function sees between the reduction and the update of a sharded step.

#include <functional>

#include "dtrain/ddp/precision/gradient_norm.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The reduced gradients of a step, each rank's share, before the update: what clip_gradients and LossScaler::step
/// take.
class ShardedGradients {
 public:
  explicit ShardedGradients(GradientNorm norm) noexcept : norm_(norm) {}

  /// Of all ranks' gradients; equal on all ranks.
  const GradientNorm& gradient_norm() const noexcept { return norm_; }

  /// The update multiplies the gradients by `factor`, in f32.
  void scale_gradients(double factor) noexcept {
    factor_ *= factor;
    norm_ = norm_.times(factor);
  }
  double factor() const noexcept { return factor_; }

 private:
  GradientNorm norm_;
  double factor_ = 1;
};

/// Decides, with the same result on every rank, whether a step updates; may scale the gradients.
using GradientInspection = std::function<bool(ShardedGradients&)>;

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::ShardedGradients;
}  // namespace DTRAIN_NAMESPACE
