#include <dtrain/dtrain.hpp>

#include <cstdio>
#include <span>
#include <vector>

// How processes start, what carries the bytes, and along which paths.
using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

// y = slope * x + offset. Any type with parameters() is a model.
struct Line {
  float value[2] = {0, 0};
  float gradient[2] = {0, 0};

  std::vector<dtrain::Parameter> parameters() {
    return {{"slope", dtrain::tensor_view(&value[0], {1}), dtrain::tensor_view(&gradient[0], {1})},
            {"offset", dtrain::tensor_view(&value[1], {1}), dtrain::tensor_view(&gradient[1], {1})}};
  }

  // Mean squared error over this rank's samples of y = 3x + 1; ready(i) says that gradient i is final.
  void backward(std::span<const std::size_t> samples, dtrain::Ready ready) {
    gradient[0] = gradient[1] = 0;
    for (const std::size_t sample : samples) {
      const float x = static_cast<float>(sample) / 1000.0F;
      const float error = value[0] * x + value[1] - (3 * x + 1);
      gradient[0] += 2 * error * x / static_cast<float>(samples.size());
      gradient[1] += 2 * error / static_cast<float>(samples.size());
    }
    ready(1);
    ready(0);
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    Line line;
    dtrain::DistributedDataParallel ddp{line, group};
    dtrain::DistributedSampler sampler{group, {.dataset_size = 1000, .global_batch = 100, .seed = 1}};
    for (std::size_t epoch = 0; epoch < 100; ++epoch) {
      for (const std::span<const std::size_t> batch : sampler.batches(epoch)) {
        ddp.backward([&](dtrain::Ready ready) { line.backward(batch, ready); });
        line.value[0] -= 0.1F * line.gradient[0];
        line.value[1] -= 0.1F * line.gradient[1];
      }
    }
    if (group.rank() == 0) {
      std::printf("y = %.3f x + %.3f, fitted on %d rank(s)\n", line.value[0], line.value[1], group.world_size());
    }
    return 0;
  });
}
