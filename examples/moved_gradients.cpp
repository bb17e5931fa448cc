// A network whose gradients lie in other memory in each step, as those of libraries that build a graph (ggml) or take
// scratch memory: here in a vector that the loop over the layers frees.
//   moved_gradients --nproc-per-node=2

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <span>
#include <string>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

// The library's part, which knows nothing of dtrain: y is the sum of w[layer][k] * sin((layer + 1) * x + k).

constexpr std::size_t layers = 3;
constexpr std::size_t width = 8;

using Weights = std::vector<float>;

float feature(std::size_t layer, std::size_t k, float x) {
  return std::sin(static_cast<float>(layer + 1) * x + static_cast<float>(k));
}

float forward(const std::vector<Weights>& weights, float x) {
  float y = 0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::size_t k = 0; k < width; ++k)
      y += weights[layer][k] * feature(layer, k, x);
  }
  return y;
}

/// The gradient of a layer for inputs `x` and errors of the outputs: new memory in each call.
Weights gradient_of(std::size_t layer, std::span<const float> x, std::span<const float> errors) {
  Weights gradient(width);
  for (std::size_t sample = 0; sample < x.size(); ++sample) {
    for (std::size_t k = 0; k < width; ++k)
      gradient[k] += 2 * errors[sample] * feature(layer, k, x[sample]) / static_cast<float>(x.size());
  }
  return gradient;
}

// What dtrain trains.

struct Model {
  std::vector<Weights> weights{layers, Weights(width)};
  std::vector<Weights> reduced{layers, Weights(width)};  // where the gradients are after a step

  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list;
    for (std::size_t i = 0; i < layers; ++i)
      list.push_back({"w" + std::to_string(i), dtrain::tensor_view(weights[i]), dtrain::tensor_view(reduced[i])});
    return list;
  }
  void backward(std::span<const float> x, std::span<const float> errors, dtrain::Ready ready) {
    for (std::size_t i = layers; i-- > 0;) {
      Weights gradient = gradient_of(i, x, errors);
      ready(i, dtrain::tensor_view(gradient));  // copied before it returns: the memory may go
    }
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    Model model;
    dtrain::DistributedDataParallel ddp{model, group};
    const dtrain::DistributedSampler sampler{group, {.dataset_size = 960, .global_batch = 48, .seed = 1}};
    double loss = 0;
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
      loss = 0;
      for (const std::span<const std::size_t> batch : sampler.batches(epoch)) {
        std::vector<float> x, errors;
        for (const std::size_t sample : batch) {
          x.push_back(static_cast<float>(sample) / 480 - 1);
          errors.push_back(forward(model.weights, x.back()) - x.back());
          loss += errors.back() * errors.back() / static_cast<float>(batch.size() * sampler.steps_per_epoch());
        }
        ddp.backward([&](dtrain::Ready ready) { model.backward(x, errors, ready); });
        for (std::size_t i = 0; i < layers; ++i) {
          for (std::size_t k = 0; k < width; ++k)
            model.weights[i][k] -= 0.02F * model.reduced[i][k];
        }
      }
    }
    loss = group.all_reduce(loss, dtrain::ReduceOp::average);
    if (group.rank() == 0) std::printf("mean squared error %.5f in the last epoch\n", loss);
    return 0;
  });
}
