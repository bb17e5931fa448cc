#pragma once
/// @file
/// How much of the communication hides behind the backward pass.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "dataset.hpp"
#include "dtrain/ddp/data/sample_batches.hpp"
#include "dtrain/ddp/ready.hpp"
#include "mlp.hpp"

namespace fashion_mnist {

/// The middle one of an odd number of times.
inline double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

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
CommunicationCost probe_overlap(Ddp& ddp, Model& model, const Dataset& dataset,
                                const dtrain::ddp::SampleBatches& batches) {
  const auto& group = ddp.group();
  if (group.world_size() == 1) return {};
  constexpr std::size_t probes = 21;
  constexpr std::size_t ways = 3;
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
  std::array<double, probes * ways> seconds{};
  const auto time = [&](std::size_t probe, std::size_t way, const auto& run) {
    group.barrier();  // what is measured is one step, not the wait for a rank that started late
    const auto begin = std::chrono::steady_clock::now();
    run();
    model.block_until_done();
    seconds[way * probes + probe] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (std::size_t probe = 0; probe < probes; ++probe) {
    gather(dataset, batches[probe % batches.size()], batch);
    time(probe, 0, [&] { ddp.backward(compute); });
    time(probe, 1, [&] {
      const auto held = ddp.no_sync();
      ddp.backward(compute);
    });
    time(probe, 2, [&] { ddp.backward(communicate); });
  }
  const auto median_of = [&](std::size_t way) {
    const auto first = seconds.begin() + static_cast<std::ptrdiff_t>(way * probes);
    return median({first, first + static_cast<std::ptrdiff_t>(probes)});
  };
  return communication_cost(median_of(0), median_of(1), median_of(2));
}

}  // namespace fashion_mnist
