// A line fitted by gradient descent with momentum, in a job that goes on when workers are killed. Kill one, and look:
//   elastic_fit --nproc-per-node=3 --min-ranks=1 --max-restarts=10
// Without --min-ranks it is an ordinary job.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <optional>
#include <thread>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

/// y = slope * x + offset.
struct Line {
  std::array<float, 2> value{};
  std::array<float, 2> gradient{};

  std::vector<dtrain::Parameter> parameters() {
    return {{"line", dtrain::tensor_view(value), dtrain::tensor_view(gradient)}};
  }

  /// Mean squared error over the samples of y = 3x + 1, times the share's weight.
  void backward(const dtrain::SampleShare& share, dtrain::Ready ready) {
    gradient = {};
    for (const std::size_t sample : share.samples) {
      const float x = static_cast<float>(sample) / 1000.0F;
      const float error = value[0] * x + value[1] - (3 * x + 1);
      gradient[0] += share.weight * 2 * error * x / static_cast<float>(share.samples.size());
      gradient[1] += share.weight * 2 * error / static_cast<float>(share.samples.size());
    }
    ready(0);
  }
};

struct Momentum {
  std::array<float, 2> velocity{};

  std::vector<dtrain::NamedTensor> state() { return {{"velocity", dtrain::tensor_view(velocity)}}; }

  void step(Line& line) {
    for (std::size_t i = 0; i < 2; ++i) {
      velocity[i] = 0.9F * velocity[i] + line.gradient[i];
      line.value[i] -= 0.02F * velocity[i];
    }
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::Elastic<Policy> job) {
    Line line;
    Momentum momentum;
    job.keep(dtrain::parameter_values(line.parameters()));  // what a worker receives that comes later
    job.keep(momentum.state());
    return job.train([&](dtrain::ProcessGroup<Policy> group) {
      dtrain::DistributedDataParallel ddp{line, group};
      dtrain::DistributedSampler sampler{group, {.dataset_size = 1000, .global_batch = 100, .seed = 1}};
      const std::size_t per_epoch = sampler.steps_per_epoch();
      std::optional<dtrain::SampleShares> shares;
      while (job.step() < 100 * per_epoch) {
        const std::size_t k = job.step() % per_epoch;
        if (!shares || k == 0) shares = sampler.shares(job.step() / per_epoch);  // orders the samples of an epoch
        const dtrain::SampleShare share = (*shares)[k];
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a larger model
        ddp.backward([&](dtrain::Ready ready) { line.backward(share, ready); });
        job.commit([&] { momentum.step(line); });  // from here on the step is done: job.step() is one more
      }
      if (group.rank() == 0) {
        std::printf("y = %.3f x + %.3f, fitted on %d rank(s)\n", line.value[0], line.value[1], group.world_size());
      }
    });
  });
}
