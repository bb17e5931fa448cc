#pragma once
/// @file
/// How much of the communication hides behind the backward pass.

#include <algorithm>
#include <cstddef>

#include "../shared/step_times.hpp"
#include "dataset.hpp"
#include "dtrain/ddp/data/sampler.hpp"
#include "dtrain/ddp/ready.hpp"
#include "mlp.hpp"

namespace fashion_mnist {

/// What communication costs a step, and what the backward pass hides of it.
struct CommunicationCost {
  double exposed_ms = 0;  ///< what a step takes beyond the same step under no_sync()
  double hidden_ms = 0;   ///< communication alone less that
};

/// From seconds. Neither is below 0: noise, and overlapping that costs more than it hides, hide nothing.
inline CommunicationCost communication_cost(double step, double no_sync, double communication_alone) {
  const double exposed = std::max(step - no_sync, 0.0);
  return {1e3 * exposed, 1e3 * std::max(communication_alone - exposed, 0.0)};
}

/// Times the same steps in three ways: reduced, not reduced, and reduced without computing. Medians of this rank's. No
/// optimizer runs, so the parameters stay as they are; gradients do not. On one rank nothing is communicated.
/// Collective, blocking: less than a second or so.
template <class Ddp, class Model>
CommunicationCost probe_overlap(Ddp& ddp, Model& model, const Dataset& dataset, const dtrain::SampleBatches& batches) {
  if (ddp.group().world_size() == 1) return {};
  Batch<float> batch;
  const std::size_t parameters = model.parameters().size();
  const auto compute = [&](dtrain::Ready ready) {
    model.forward(batch.inputs);
    model.backward(batch, ready);
  };
  const auto communicate = [&](dtrain::Ready ready) {
    for (std::size_t i = parameters; i-- > 0;)
      model.announce(i, ready);
  };
  const auto [step, no_sync, communication_alone] = shared::median_seconds(
      ddp.group(), [&](std::size_t turn) { gather(dataset, batches[turn % batches.size()], batch); },
      [&] {
        ddp.backward(compute);
        model.block_until_done();
      },
      [&] {
        const auto held = ddp.no_sync();
        ddp.backward(compute);
        model.block_until_done();
      },
      [&] {
        ddp.backward(communicate);
        model.block_until_done();
      });
  return communication_cost(step, no_sync, communication_alone);
}

}  // namespace fashion_mnist
