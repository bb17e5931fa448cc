#pragma once
/// @file
/// StepOptions: what one step does with its reduced gradients before an optimizer gets them: norm, loss scaling,
/// clipping. decide_step(): the host's part.

#include <cstddef>
#include <functional>
#include <limits>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"

namespace DTRAIN_NAMESPACE::ddp {

class LossScaler;
class DeviceLossScaler;  // where there is CUDA
class MasterWeights;

/// A LossScaler or a DeviceLossScaler, borrowed, or none: `.scaler = &scaler`.
/// @ingroup precision
class ScalerRef {
 public:
  ScalerRef() = default;
  // NOLINTBEGIN(google-explicit-constructor): `.scaler = &scaler`
  ScalerRef(std::nullptr_t) noexcept {}
  ScalerRef(LossScaler* scaler) noexcept : host_(scaler) {}
  ScalerRef(DeviceLossScaler* scaler) noexcept : device_(scaler) {}
  // NOLINTEND(google-explicit-constructor)

  LossScaler* on_host() const noexcept { return host_; }            ///< null: none, or one on a device
  DeviceLossScaler* on_device() const noexcept { return device_; }  ///< null: none, or one on the host
  explicit operator bool() const noexcept { return host_ != nullptr || device_ != nullptr; }

 private:
  LossScaler* host_ = nullptr;
  DeviceLossScaler* device_ = nullptr;
};

/// The reduced gradients of a step, for StepOptions::inspect.
/// @ingroup precision
class StepGradients {
 public:
  explicit StepGradients(const GradientNorm& norm) noexcept : norm_(norm) {}

  /// The norm of all gradients, equal on all ranks: after a scaler's division and scale().
  const GradientNorm& gradient_norm() const noexcept { return norm_; }

  /// Multiplies the gradients by `factor`, the same on every rank.
  void scale(double factor) noexcept {
    factor_ *= factor;
    norm_ = norm_.times(factor);
  }
  double factor() const noexcept { return factor_; }

 private:
  GradientNorm norm_;
  double factor_ = 1;
};

/// Options of one step, the same on every rank; but measure_norm may differ in steps of the model alone. A step
/// measures the norm of its reduced gradients, if an option needs it. A scaler divides then; if the gradients are not
/// finite, it backs off, and the step ends with the result false. `inspect` comes next, then clipping. The gradients
/// are multiplied once, by the product of all factors. Under no_sync() options are ignored.
/// @ingroup precision
struct StepOptions {
  /// The largest norm: gradients with a larger one are multiplied by clip_norm / (norm + 1e-6), as by
  /// torch.nn.utils.clip_grad_norm_. 0: no clipping. Gradients whose norm is not finite stay as they are. On CUDA the
  /// device computes the factor, and the host waits for nothing.
  double clip_norm = 0;

  /// Divides the gradients by its scale, and changes the scale. For a LossScaler of a model on CUDA the host waits.
  /// Lifetime: the scaler outlives the step; a DeviceLossScaler also the step's work, and graphs of it.
  ScalerRef scaler{};

  /// Called on each rank with the same gradients; returns the same on every rank: false for no update. On CUDA the host
  /// waits for the norm before, the step is not captured, and a scaler is a LossScaler.
  std::function<bool(StepGradients& gradients)> inspect{};

  /// Steps of the model alone, in host memory: the gradients, multiplied, are written to the f32 gradients of these
  /// weights, in one pass. The model's gradients stay. Lifetime: outlives the step.
  MasterWeights* master = nullptr;

  /// Measures the norm also where no other option needs it: for a log.
  bool measure_norm = false;

  /// Whether the step measures the norm.
  bool needs_norm() const noexcept { return measure_norm || clip_norm != 0 || scaler || inspect; }
  /// clip_norm; infinity: no clipping.
  double most_norm() const noexcept { return clip_norm > 0 ? clip_norm : std::numeric_limits<double>::infinity(); }
  /// Whether the host needs the norm within the step, also on CUDA.
  bool needs_host() const noexcept { return scaler.on_host() != nullptr || inspect; }
};

/// @param on_device whether the gradients are in device memory @param is_sharded whether a ShardedOptimizer has the
/// step
/// @throws Error (invalid_argument) for options that no such step has; `caller` is the user's call
void require_valid(const StepOptions& options, bool on_device, bool is_sharded, const char* caller);

/// The host's decision on a step.
struct StepDecision {
  bool updates = true;  ///< if false, nothing is multiplied
  double factor = 1;    ///< the multiplier of the gradients
  GradientNorm norm{};  ///< the norm of the multiplied gradients

  /// @param max_norm StepOptions::clip_norm; 0: does not clip
  void clip(double max_norm) noexcept {
    const double clipping = max_norm > 0 ? clipping_factor(norm, max_norm) : 1;
    factor *= clipping;
    norm.norm *= clipping;
  }
};

/// Calls the LossScaler, if there is one, and `inspect`; does not clip. @param measured norm of the reduced gradients
/// @throws as `inspect`; Error (invalid_argument) if a loaded scale is no finite positive number
StepDecision decide_step(const StepOptions& options, const GradientNorm& measured);

/// @throws Error (unsupported): a step for which the host needs the norm is captured in a CUDA graph
[[noreturn]] void refuse_captured_decision();

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::ScalerRef;
using ddp::StepGradients;
using ddp::StepOptions;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/precision/loss_scaler.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED void require_valid(const StepOptions& options, bool on_device, bool is_sharded, const char* caller) {
  if (!(options.clip_norm >= 0)) {
    throw_error(Errc::invalid_argument, "{} has a clip_norm of {}; give a positive norm, or 0 for no clipping",
                {caller, options.clip_norm});
  }
  if (options.scaler.on_device() != nullptr && !on_device) {
    throw_error(Errc::invalid_argument,
                "{} has a DeviceLossScaler, which is for models in device memory; in host memory give a LossScaler",
                {caller});
  }
  if (options.scaler.on_device() != nullptr && options.inspect) {
    throw_error(Errc::invalid_argument,
                "{} has a DeviceLossScaler, for which the host waits in no step, and a function that inspects the "
                "gradients, for which it does; give a LossScaler",
                {caller});
  }
  if (options.master != nullptr && (on_device || is_sharded)) {
    throw_error(
        Errc::invalid_argument, "{} has MasterWeights, {}",
        {caller, is_sharded ? "but a ShardedOptimizer keeps f32 weights of 16-bit models itself; leave the option out"
                            : "which are for models in host memory; leave the option out"});
  }
}

DTRAIN_DEFINED StepDecision decide_step(const StepOptions& options, const GradientNorm& measured) {
  StepDecision decision;
  decision.norm = measured;
  StepGradients gradients(measured);
  if (LossScaler* const scaler = options.scaler.on_host()) {
    const double factor = scaler->next_factor(measured.finite);
    decision.updates = measured.finite;
    if (!decision.updates) return decision;
    gradients.scale(factor);
  }
  if (options.inspect && !options.inspect(gradients)) {
    decision.updates = false;
    return decision;
  }
  decision.factor = gradients.factor();
  decision.norm = gradients.gradient_norm();
  return decision;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_captured_decision() {
  throw_error(Errc::unsupported,
              "a step with a LossScaler, or whose function inspects the gradients, was captured in a CUDA graph, but "
              "the host decides by the norm in each such step; give a DeviceLossScaler, or capture a step without");
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
