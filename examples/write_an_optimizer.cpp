// An optimizer of one's own, Lion (Chen et al. 2023), of whose state each rank keeps a part. With a file, the training
// goes on from it, on any number of ranks.
//   write_an_optimizer --nproc-per-node=2 [FILE]

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <span>
#include <string>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

struct Lion {
  float rate = 1e-2F;
  float beta1 = 0.9F;
  float beta2 = 0.99F;

  struct State {
    std::span<float> momentum;  // a float for each weight
  };

  void operator()(std::span<float> weights, std::span<const float> gradients, State state,
                  const dtrain::StepInfo&) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      float& momentum = state.momentum[i];
      const float direction = beta1 * momentum + (1 - beta1) * gradients[i];
      weights[i] -= rate * static_cast<float>((direction > 0) - (direction < 0));
      momentum = beta2 * momentum + (1 - beta2) * gradients[i];
    }
  }
};

/// y = weights * x, for samples of which each rank has its own.
struct Linear {
  static constexpr std::size_t inputs = 100;
  std::vector<float> weights = std::vector<float>(inputs);
  std::vector<float> gradients = std::vector<float>(inputs);

  std::vector<dtrain::Parameter> parameters() {
    return {{"weights", dtrain::tensor_view(weights), dtrain::tensor_view(gradients)}};
  }

  /// @returns half the square of the error
  float backward(int sample, dtrain::Ready ready) {
    std::vector<float> x(inputs);
    float error = 0;
    for (std::size_t i = 0; i < inputs; ++i) {
      x[i] = std::sin(static_cast<float>((sample * 31 + 7) * (static_cast<int>(i) + 1)));
      const float wanted = std::cos(static_cast<float>(i));
      error += (weights[i] - wanted) * x[i];
    }
    for (std::size_t i = 0; i < inputs; ++i) {
      gradients[i] = error * x[i];
    }
    ready(0);
    return error * error / 2;
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    const std::string file = arguments.size() > 1 ? arguments[1] : "";
    Linear model;
    dtrain::DistributedDataParallel ddp{model, group};
    dtrain::ShardedOptimizer optimizer{ddp, Lion{}};
    const std::vector<dtrain::NamedTensor> state = dtrain::parameter_values(model.parameters());
    if (!file.empty()) dtrain::load_checkpoint(group, file, state, optimizer);
    float loss = 0;
    for (int step = 0; step < 500; ++step) {
      const int sample = static_cast<int>(optimizer.steps()) * group.world_size() + group.rank();
      optimizer.rule().rate = 1e-2F / (1 + static_cast<float>(optimizer.steps()) / 100);  // a schedule
      ddp.backward([&](dtrain::Ready ready) { loss = model.backward(sample, ready); }, optimizer, {.clip_norm = 10});
    }
    if (!file.empty()) dtrain::save_checkpoint(group, file, state, optimizer);
    loss = group.all_reduce(loss, dtrain::ReduceOp::average);
    std::printf("after %d steps the loss is %.4f; this rank has %zu of %zu bytes of the optimizer's state\n",
                static_cast<int>(optimizer.steps()), static_cast<double>(loss), optimizer.state_bytes(),
                Linear::inputs * sizeof(float));
    return 0;
  });
}
