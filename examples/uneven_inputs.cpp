// Ranks with different amounts of data: each reads its own samples, rank 1 twice as many batches as rank 0. A rank that
// runs out of batches goes on with zeros in place of its gradients, until all ranks have ended the epoch.
//   uneven_inputs --nproc-per-node=3

#include <array>
#include <cstddef>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;
using Batch = std::array<float, 10>;

/// y = slope * x + offset.
struct Line {
  std::vector<float> value = std::vector<float>(2);
  std::vector<float> gradient = std::vector<float>(2);

  std::vector<dtrain::Parameter> parameters() {
    return {{"slope and offset", dtrain::tensor_view(value), dtrain::tensor_view(gradient)}};
  }

  /// The mean squared error over samples of y = 3x + 1.
  void backward(const Batch& batch, dtrain::Ready ready) {
    gradient = {0, 0};
    for (const float x : batch) {
      const float error = value[0] * x + value[1] - (3 * x + 1);
      gradient[0] += 2 * error * x / static_cast<float>(batch.size());
      gradient[1] += 2 * error / static_cast<float>(batch.size());
    }
    ready(0);
  }

  void descend(float rate) {
    value[0] -= rate * gradient[0];
    value[1] -= rate * gradient[1];
  }
};

/// What this rank reads, for example from a file of its own: 4 batches on rank 0, 8 on rank 1, 12 on rank 2.
std::vector<Batch> read_batches(int rank) {
  std::vector<Batch> batches(4 * (static_cast<std::size_t>(rank) + 1));
  std::size_t sample = 0;
  for (Batch& batch : batches) {
    for (float& x : batch)
      x = static_cast<float>(37 * sample++ % 100) / 100;
  }
  return batches;
}

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    const std::vector<Batch> batches = read_batches(group.rank());
    Line line;
    dtrain::DistributedDataParallel ddp{line, group};
    for (int epoch = 0; epoch < 100; ++epoch) {
      dtrain::UnevenInputs inputs{group};
      for (const Batch& batch : batches) {
        inputs.begin_step();  // before the forward pass and its first collective
        ddp.backward([&](dtrain::Ready ready) { line.backward(batch, ready); });
        line.descend(0.1F);
      }
      inputs.finish([&] {  // called for each step that other ranks still make
        ddp.step_without_data();
        line.descend(0.1F);
      });
    }
    std::printf("y = %.3f x + %.3f after %d steps, %d of them with data\n", static_cast<double>(line.value[0]),
                static_cast<double>(line.value[1]), static_cast<int>(ddp.statistics().steps),
                static_cast<int>(100 * batches.size()));
    return 0;
  });
}
