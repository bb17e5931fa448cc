// A network as C programs have it (llm.c, ggml): all values in one block of memory, all gradients in another, and
// pointers into them. The block of gradients lies in dtrain's memory, where it is reduced without a copy.
//   one_block --nproc-per-node=2

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dtrain/dtrain.hpp>
#include <new>
#include <span>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

// The C part, which knows nothing of dtrain.

constexpr std::size_t hidden = 16;
constexpr std::size_t block_size = 3 * hidden + 1;

struct Tensors {
  float* hidden_weight;
  float* hidden_bias;
  float* output_weight;
  float* output_bias;
};

Tensors tensors_in(float* block) {
  return {block, block + hidden, block + 2 * hidden, block + 3 * hidden};
}

float forward(const Tensors& value, float x, float* activations) {
  float y = *value.output_bias;
  for (std::size_t k = 0; k < hidden; ++k) {
    activations[k] = std::tanh(value.hidden_weight[k] * x + value.hidden_bias[k]);
    y += value.output_weight[k] * activations[k];
  }
  return y;
}

void add_gradient(const Tensors& value, const Tensors& gradient, float x, float error, const float* activations) {
  for (std::size_t k = 0; k < hidden; ++k) {
    const float slope = error * value.output_weight[k] * (1 - activations[k] * activations[k]);
    gradient.hidden_weight[k] += slope * x;
    gradient.hidden_bias[k] += slope;
    gradient.output_weight[k] += error * activations[k];
  }
  *gradient.output_bias += error;
}

// What dtrain trains: one parameter, which is the whole block.

struct Model {
  Model() : values(static_cast<float*>(std::calloc(block_size, sizeof(float)))) {
    if (values == nullptr) throw std::bad_alloc();
    value = tensors_in(values);
    for (std::size_t k = 0; k < block_size; ++k)
      values[k] = 0.8F * std::sin(static_cast<float>(5 * k + 1));
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model() { std::free(values); }

  std::vector<dtrain::Parameter> parameters() {
    return {{"all", dtrain::tensor_view(values, {block_size}), dtrain::tensor_view(gradients, {block_size})}};
  }

  // Called once, while the model is wrapped: here is the block that gradients are to be in.
  void bind_gradient(std::size_t, const dtrain::TensorView& block) {
    gradients = block.as<float>().data();
    gradient = tensors_in(gradients);
  }

  float* values;
  float* gradients = nullptr;  // until bind_gradient; without that function, memory of its own
  Tensors value{};
  Tensors gradient{};
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    Model model;
    dtrain::DistributedDataParallel ddp{model, group};
    const dtrain::DistributedSampler sampler{group, {.dataset_size = 960, .global_batch = 48, .seed = 1}};
    float activations[hidden];
    double loss = 0;
    for (std::uint64_t epoch = 0; epoch < 80; ++epoch) {
      loss = 0;
      for (const std::span<const std::size_t> batch : sampler.batches(epoch)) {
        for (std::size_t k = 0; k < block_size; ++k)
          model.gradients[k] = 0;
        for (const std::size_t sample : batch) {
          const float x = static_cast<float>(sample) / 480 - 1;
          const float error = forward(model.value, x, activations) - std::sin(3 * x);
          add_gradient(model.value, model.gradient, x, 2 * error / static_cast<float>(batch.size()), activations);
          loss += error * error / static_cast<float>(batch.size()) / static_cast<float>(sampler.steps_per_epoch());
        }
        ddp.backward([](dtrain::Ready ready) { ready(0); });
        for (std::size_t k = 0; k < block_size; ++k)
          model.values[k] -= 0.1F * model.gradients[k];
      }
    }
    loss = group.all_reduce(loss, dtrain::ReduceOp::average);
    if (group.rank() == 0) std::printf("mean squared error %.5f in the last epoch\n", loss);
    return 0;
  });
}
