// Weights that depend on the program and its seeds alone: the same bits on any number of ranks, also if workers are
// killed.
//   same_bits --nproc-per-node=1
//   same_bits --nproc-per-node=3 --min-ranks=1 --max-restarts=10

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <optional>
#include <random>
#include <span>
#include <thread>

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory>;

/// y is the sum of outer[k] * tanh(inner[k] * x + offset[k]), with dropout.
struct Network {
  static constexpr std::size_t width = 64;
  alignas(64) std::array<float, 3 * width> values{};  // inner, offset, outer
  alignas(64) std::array<float, 3 * width> gradients{};

  Network() {
    values.fill(0.1F);
    for (std::size_t k = 0; k < width; ++k)
      values[k] = static_cast<float>(k % 8) - 3.5F;
  }

  std::vector<dtrain::Parameter> parameters() {
    return {{"values", dtrain::tensor_view(values), dtrain::tensor_view(gradients)}};
  }

  /// The gradients of the mean squared error over the samples of sin(x). @returns this error
  double backward(std::span<const std::size_t> samples, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    gradients = {};
    const auto count = static_cast<float>(samples.size());
    double loss = 0;
    for (const std::size_t sample : samples) {
      const float x = static_cast<float>(sample) / 100 - 5;
      float hidden[width];
      float error = -std::sin(x);
      for (std::size_t k = 0; k < width; ++k) {
        const bool is_kept = random() % 8 != 0;
        hidden[k] = is_kept ? std::tanh(values[k] * x + values[width + k]) : 0;
        error += values[2 * width + k] * hidden[k];
      }
      loss += static_cast<double>(error * error);
      for (std::size_t k = 0; k < width; ++k) {
        const float slope = hidden[k] == 0 ? 0 : values[2 * width + k] * (1 - hidden[k] * hidden[k]);
        gradients[k] += 2 * error * slope * x / count;
        gradients[width + k] += 2 * error * slope / count;
        gradients[2 * width + k] += 2 * error * hidden[k] / count;
      }
    }
    return loss / static_cast<double>(count);
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::Elastic<Policy> job) {
    Network net;
    job.keep(dtrain::parameter_values(net.parameters()));
    return job.train([&](dtrain::ProcessGroup<Policy> group) {
      dtrain::DistributedDataParallel ddp{net, group};
      const dtrain::DistributedSampler sampler{
          group, {.dataset_size = 1000, .global_batch = 100, .seed = 1, .micro_batches = 8}};
      const std::size_t per_epoch = sampler.steps_per_epoch();
      std::optional<dtrain::SampleSteps> steps;
      while (job.step() < 50 * per_epoch) {
        const std::size_t k = job.step() % per_epoch;
        if (!steps || k == 0) steps = sampler.steps(job.step() / per_epoch);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // a larger model
        const double loss = ddp.backward((*steps)[k], [&](const dtrain::MicroBatch& batch, dtrain::Ready ready) {
          const double mean = net.backward(batch.samples, batch.seed);
          ready(0);
          return mean;
        });
        job.commit([&] {
          for (std::size_t i = 0; i < net.values.size(); ++i)
            net.values[i] -= 0.02F * net.gradients[i];
        });
        if (group.rank() == 0 && job.step() % 100 == 0) std::printf("step %zu: loss %.17g\n", job.step(), loss);
      }
      const dtrain::Sha256Digest digest = dtrain::Sha256().update(std::as_bytes(std::span(net.values))).digest();
      if (group.rank() == 0) {
        std::printf("weights %s\n", dtrain::hex(digest).c_str());
      }
    });
  });
}
