#pragma once
/// @file
/// How much of the communication hides behind the backward pass.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "dataset.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/ddp/ready.hpp"
#include "dtrain/ddp/sample_batches.hpp"
#include "mlp.hpp"

namespace fashion_mnist {

/// The middle one of an odd number of times.
inline double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// 100 x (1 - (T_step - T_no_sync) / T_communication_alone); negative where overlapping costs more than it hides.
inline double overlap_percent(double step, double no_sync, double communication_alone) {
  return 100 * (1 - (step - no_sync) / communication_alone);
}

/// A backward pass without communication.
struct SilentSink final : dtrain::Ready::Sink {
  void ready(std::size_t) override {}
  void ready(std::size_t, dtrain::StreamHandle) override {}
  void ready(std::size_t, const dtrain::TensorView&, dtrain::StreamHandle) override {}
};

/// Times the same steps in three ways: reduced, not reduced, and reduced without computing. No optimizer runs, so the
/// parameters stay as they are; gradients do not. Nothing on one rank. Collective, blocking: less than a second or so.
template <class Ddp, class Model>
std::optional<double> probe_overlap(Ddp& ddp, Model& model, const Dataset& dataset,
                                    const dtrain::ddp::SampleBatches& batches) {
  const auto& group = ddp.group();
  if (group.world_size() == 1) return std::nullopt;
  constexpr std::size_t probes = 21;
  constexpr std::size_t ways = 3;
  Batch<float> batch;
  SilentSink silent;
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
    group.barrier_blocking();  // what is measured is one step, not the wait for a rank that started late
    const auto begin = std::chrono::steady_clock::now();
    run();
    model.block_until_done();
    seconds[way * probes + probe] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (std::size_t probe = 0; probe < probes; ++probe) {
    gather(dataset, batches[probe % batches.size()], batch);
    time(probe, 0, [&] { ddp.backward(compute); });
    time(probe, 1, [&] { compute(dtrain::Ready(silent)); });
    time(probe, 2, [&] { ddp.backward(communicate); });
  }
  group.all_reduce_blocking(std::span<double>(seconds), dtrain::ReduceOp::max);  // a step takes as long as the slowest
  const auto median_of = [&](std::size_t way) {
    const auto first = seconds.begin() + static_cast<std::ptrdiff_t>(way * probes);
    return median({first, first + static_cast<std::ptrdiff_t>(probes)});
  };
  return overlap_percent(median_of(0), median_of(1), median_of(2));
}

}  // namespace fashion_mnist
