#pragma once
/// @file
/// NoSync: the scope in which a program's steps reduce nothing, from no_sync(). Accumulation: target of these steps,
/// which checks each ready gradient and reduces none; Driver owns it.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/ddp/step.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Scope in which steps of a DistributedDataParallel reduce nothing. Movable. Threads: the thread that drives steps.
/// @ingroup training
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<int> depth) noexcept : depth_(std::move(depth)) { ++*depth_; }
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (depth_) {
      --*depth_;
    }
  }

 private:
  std::shared_ptr<int> depth_;
};

/// Stream of each gradient that steps under no_sync() have left unreduced; nullopt for other parameters. With
/// allow_unused_parameters, the next step that reduces includes these gradients without another ready().
using AccumulationStreams = std::vector<std::optional<StreamHandle>>;

/// Target of steps under no_sync(): ready gradients stay in place. Lifetime: the constructor's arguments outlive it.
class Accumulation final : public Step::Target {
 public:
  /// For a step that reduces and gets a gradient in other memory than the parameter's own, which has accumulated.
  static constexpr const char* why_not_elsewhere =
      "came with other memory, and what steps under no_sync() left in its own would be lost; add to that, and call "
      "ready(i)";

  Accumulation(const GradientTable& gradients, AccumulationStreams& accumulated, const FailureContext& context,
               StepMeter& meter) noexcept
      : gradients_(&gradients), accumulated_(&accumulated), context_(&context), meter_(&meter) {}

  Step begin() noexcept {
    meter_->begin_unreduced();
    return Step(*this);
  }

  /// @throws Error (invalid_argument) if the gradient is in other memory than the parameter's own: the next step does
  /// not read other memory
  void ready(const ReadyGradient& gradient) override;

  void finish() override;
  void abandon(bool) noexcept override {}  // no other rank waits for this step

 private:
  const GradientTable* gradients_;
  AccumulationStreams* accumulated_;
  const FailureContext* context_;
  StepMeter* meter_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void Accumulation::ready(const ReadyGradient& gradient) {
  gradients_->check(gradient);
  if (gradients_->memory_of(gradient) != (*gradients_)[gradient.parameter].own) {
    gradients_->names().refuse_ready(gradient.parameter,
                                     "came with other memory under no_sync(); add the gradient to the parameter's "
                                     "own, which the next step without no_sync() reduces");
  }
  if (!context_->is_elastic) context_->latch->throw_if_failed(context_->rank);  // else finish() throws
  (*accumulated_)[gradient.parameter] = gradient.stream.value_or(StreamHandle{});
}

DTRAIN_DEFINED void Accumulation::finish() {
  meter_->finished_unreduced();
  context_->latch->throw_if_failed(context_->rank);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::NoSync;
}  // namespace DTRAIN_NAMESPACE
