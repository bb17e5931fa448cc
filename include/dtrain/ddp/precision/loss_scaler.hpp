#pragma once
/// @file
/// LossScaler: factor of the loss that keeps small f16 gradients representable and adapts to overflows, equal on all
/// ranks.

#include <cstdint>
#include <limits>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Options of LossScaler, equal on every rank, with the defaults of torch.amp.GradScaler.
/// @ingroup precision
struct LossScalerOptions {
  float initial_scale = 65536;
  float growth_factor = 2;              ///< a factor above 1
  float backoff_factor = 0.5F;          ///< a factor between 0 and 1
  std::int64_t growth_interval = 2000;  ///< steps without overflow before the scale grows
};

/// Dynamic loss scaling: the program multiplies the loss by scale(), and a step with this scaler divides its reduced
/// gradients by scale(), if all are finite, and updates the scale.
///
///   const auto pass = [&](dtrain::Ready ready) { model.backward(scaler.scale() * loss, ready); };
///   if (ddp.backward(pass, {.scaler = &scaler})) optimizer.step();  // false: an overflow
///
/// A quotient is rounded to the gradients' type: f16 gradients below 6e-8 become zero, but not with
/// StepOptions::master.
/// The scale changes as in torch.amp.GradScaler. An overflow multiplies the scale by backoff_factor. growth_interval
/// successive steps without overflow multiply the scale by growth_factor, unless the product is beyond f32. The scale
/// stays positive. All ranks have the same scale without a collective, because all have the same norm.
/// Threads: one at a time.
/// @ingroup precision
class LossScaler {
 public:
  /// @throws Error (invalid_argument) for options outside their ranges
  explicit LossScaler(const LossScalerOptions& options = {});

  /// Factor of this step's loss.
  float scale() const noexcept { return scale_; }

  /// For a step, which multiplies its gradients by the result: 1 / scale(); 0 if they are not finite. Updates the
  /// scale.
  /// @throws Error (invalid_argument) if a loaded scale is no finite positive number
  double next_factor(bool finite);

  /// State for save_checkpoint and load_checkpoint: the scale, and the number of steps since the scale changed.
  /// Lifetime: the views refer to this object, which must not move.
  std::vector<NamedTensor> state();

 private:
  void require_scale() const;
  void update(bool finite) noexcept;

  LossScalerOptions options_;
  float scale_;
  std::int64_t finite_steps_ = 0;  ///< finite steps since the scale changed
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options), scale_(options.initial_scale) {
  require_scale();
  if (!(options.growth_factor > 1 && options.backoff_factor > 0 && options.backoff_factor < 1 &&
        options.growth_interval > 0)) {
    throw_error(Errc::invalid_argument,
                "LossScalerOptions has growth_factor {}, backoff_factor {} and growth_interval {}; the first is above "
                "1, the second between 0 and 1, the third positive",
                {options.growth_factor, options.backoff_factor, options.growth_interval});
  }
}

DTRAIN_DEFINED std::vector<NamedTensor> LossScaler::state() {
  return {{"loss_scaler.scale", tensor_view(&scale_, {})},
          {"loss_scaler.finite_steps", tensor_view(&finite_steps_, {})}};
}

DTRAIN_DEFINED void LossScaler::require_scale() const {
  if (!(scale_ > 0 && scale_ <= std::numeric_limits<float>::max())) {
    throw_error(Errc::invalid_argument, "a loss scale is {}; give a positive finite number, such as 65536", {scale_});
  }
}

DTRAIN_DEFINED double LossScaler::next_factor(bool finite) {
  require_scale();
  const double factor = finite ? 1.0 / static_cast<double>(scale_) : 0;
  update(finite);
  return factor;
}

DTRAIN_DEFINED void LossScaler::update(bool finite) noexcept {
  float next = scale_;
  if (!finite) {
    next *= options_.backoff_factor;
    finite_steps_ = 0;
  } else if (++finite_steps_ >= options_.growth_interval) {
    next *= options_.growth_factor;
    finite_steps_ = 0;
  }
  if (next > 0 && next <= std::numeric_limits<float>::max()) {
    scale_ = next;
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::LossScaler;
using ddp::LossScalerOptions;
}  // namespace DTRAIN_NAMESPACE
