#pragma once
/// @file
/// scale_by_options(): scaler, inspection and clipping of a step whose model gets the reduced gradients.

#include <cstddef>

#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/precision/master_weights.hpp"
#include "dtrain/ddp/step_options.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Called at the end of finish(), with the norm measured if an option needs it. On CUDA the host waits only where it
/// decides. @param copier a gradient copier @param norms of the step @param read_norm makes norms.norm() known
/// @param wait `wait(event)` throws if the job has failed @returns as Step::finish @throws as decide_step
template <class Copier, class Norms, class ReadNorm, class Wait>
bool scale_by_options(const StepOptions& options, const GradientTable& gradients, Copier& copier, Norms& norms,
                      [[maybe_unused]] const ReadNorm& read_norm, Wait wait) {
  StepDecision decision;
  if constexpr (Copier::copies_on_stream) {
    if (options.needs_host()) {
      if (copier.is_capturing()) refuse_captured_decision();
      read_norm();
      decision = decide_step(options, norms.norm());
    }
    auto* const scaler = options.scaler.on_device();
    const bool scales = scaler != nullptr || options.clip_norm > 0 || decision.factor != 1;
    if (!decision.updates || !scales) return decision.updates;
    const auto enqueue_factor = [&](auto stream) {
      norms.rescale(scaler, decision.factor, options.most_norm(), stream);
    };
    copier.scale_in_step(norms.factor(), enqueue_factor, wait);
  } else {
    if (options.needs_norm()) decision = decide_step(options, norms.norm());
    if (!decision.updates) return false;
    decision.clip(options.clip_norm);
    if (options.master != nullptr) {
      for (std::size_t parameter = 0; parameter < gradients.size(); ++parameter)
        options.master->load_gradient(parameter, gradients.view(parameter), decision.factor);
    } else if (decision.factor != 1) {
      copier.scale_reduced(decision.factor, wait);
    }
    if (options.needs_norm()) norms.set(decision.norm);
  }
  return true;
}

}  // namespace DTRAIN_NAMESPACE::ddp
