// A network of one's own on plain vectors, with what a training has around it: gradients that dtrain places, two passes
// for each step, an evaluation over all ranks, and a checkpoint from which the training goes on when it is started
// again.
//   small_network --nproc-per-node=3
//   small_network --nproc-per-node=3 network.checkpoint

#include <array>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <span>
#include <string>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

constexpr std::size_t dataset_size = 960;
constexpr std::int64_t epochs = 40;

float input_of(std::size_t sample) {
  return static_cast<float>(sample) / 480 - 1;
}
float target_of(std::size_t sample) {
  return std::sin(3 * input_of(sample));
}

/// One input, 16 hidden units, one output.
class Network {
 public:
  Network() {
    for (std::size_t i = 0; i < tensors; ++i) {
      for (std::size_t k = 0; k < sizes[i]; ++k) {
        values_[i].push_back(0.8F * std::sin(static_cast<float>(9 * i + 5 * k + 1)));
      }
      own_gradients_[i].resize(sizes[i]);
      gradients_[i] = own_gradients_[i];
    }
  }

  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list;
    for (std::size_t i = 0; i < tensors; ++i) {
      list.push_back({names[i], dtrain::tensor_view(values_[i]), dtrain::tensor_view(gradients_[i])});
    }
    return list;
  }

  // Optional: gradient i lives in memory of the wrapper's from now on, which is reduced without a copy.
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) { gradients_[i] = view.as<float>(); }

  float operator()(float x) {
    float y = values_[3][0];
    for (std::size_t k = 0; k < hidden; ++k) {
      activations_[k] = std::tanh(values_[0][k] * x + values_[1][k]);
      y += values_[2][k] * activations_[k];
    }
    return y;
  }

  void clear_gradients() {
    for (const std::span<float> gradient : gradients_) {
      for (float& element : gradient)
        element = 0;
    }
  }

  // Adds the gradient of `weight` times the squared error over the samples.
  void backward(std::span<const std::size_t> samples, float weight, dtrain::Ready ready) {
    for (const std::size_t sample : samples) {
      const float x = input_of(sample);
      const float error = 2 * weight * ((*this)(x)-target_of(sample));
      for (std::size_t k = 0; k < hidden; ++k) {
        const float slope = error * values_[2][k] * (1 - activations_[k] * activations_[k]);
        gradients_[0][k] += slope * x;
        gradients_[1][k] += slope;
        gradients_[2][k] += error * activations_[k];
      }
      gradients_[3][0] += error;
    }
    for (std::size_t i = tensors; i-- > 0;)
      ready(i);
  }

  void descend(float rate) {
    for (std::size_t i = 0; i < tensors; ++i) {
      for (std::size_t k = 0; k < sizes[i]; ++k)
        values_[i][k] -= rate * gradients_[i][k];
    }
  }

 private:
  static constexpr std::size_t tensors = 4;
  static constexpr std::size_t hidden = 16;
  static constexpr std::array<const char*, tensors> names{"hidden.weight", "hidden.bias", "output.weight",
                                                          "output.bias"};
  static constexpr std::array<std::size_t, tensors> sizes{hidden, hidden, hidden, 1};

  std::array<std::vector<float>, tensors> values_;
  std::array<std::vector<float>, tensors> own_gradients_;  // until bind_gradient
  std::array<std::span<float>, tensors> gradients_;
  std::array<float, hidden> activations_{};
};

volatile std::sig_atomic_t interrupted = 0;

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](Group group, dtrain::Arguments arguments) {
    std::signal(SIGINT, [](int) { interrupted = 1; });  // Ctrl-C ends the training after an epoch
    const std::string file = arguments.size() > 1 ? arguments[1] : "";
    Network network;
    std::int64_t epoch = 0;

    std::vector<dtrain::NamedTensor> state = dtrain::parameter_values(network.parameters());
    state.push_back({"epochs done", dtrain::tensor_view(&epoch, {})});
    if (!file.empty()) dtrain::load_checkpoint(group, file, state);  // rank 0 reads; false: no such file

    dtrain::DistributedDataParallel ddp{network, group, {.bucket_bytes = std::size_t{10} << 20}};
    const dtrain::DistributedSampler sampler{group,
                                             {.dataset_size = dataset_size,
                                              .global_batch = 48,

                                              .seed = 1}};
    while (epoch < epochs) {
      for (const std::span<const std::size_t> batch : sampler.batches(static_cast<std::uint64_t>(epoch))) {
        const float weight = 1 / static_cast<float>(batch.size());
        const std::span<const std::size_t> first = batch.first(batch.size() / 2);
        const std::span<const std::size_t> second = batch.subspan(first.size());

        network.clear_gradients();
        {
          const auto held = ddp.no_sync();  // what this pass gives stays on its rank
          ddp.backward([&](dtrain::Ready ready) { network.backward(first, weight, ready); });
        }
        ddp.backward([&](dtrain::Ready ready) { network.backward(second, weight, ready); });  // reduces both
        network.descend(0.1F);
      }
      ++epoch;
      if (!file.empty()) dtrain::save_checkpoint(group, file, state);  // rank 0 writes
      if (group.any(interrupted != 0)) break;                          // some rank's, so that all stop
    }

    std::array<double, 2> sums{};  // squared errors and samples, of this rank; then of all
    for (const std::span<const std::size_t> batch : sampler.evaluation()) {
      for (const std::size_t sample : batch) {
        const double error = network(input_of(sample)) - target_of(sample);
        sums[0] += error * error;
        sums[1] += 1;
      }
    }
    group.all_reduce(sums, dtrain::ReduceOp::sum);

    const std::string summary = ddp.summary();
    if (group.rank() == 0) {
      std::printf("mean squared error %.5f over %.0f samples after %d epochs\n%s\n", sums[0] / sums[1], sums[1],
                  static_cast<int>(epoch), summary.c_str());
    }
    return 0;
  });
}
