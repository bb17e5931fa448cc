// A training library that owns the loop, as mlpack and ensmallen do: it asks for gradients, and calls an update rule
// that it is given. dtrain lies around that rule.
//   wrapped_optimizer --nproc-per-node=2

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <dtrain/dtrain.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

// The library's part, which knows nothing of dtrain.
namespace library {

/// An update rule with state, which it can write and read.
class Momentum {
 public:
  void update(std::span<float> weights, std::span<const float> gradient) {
    velocity_.resize(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      velocity_[i] = 0.9F * velocity_[i] - 0.02F * gradient[i];
      weights[i] += velocity_[i];
    }
  }
  std::string save() const {
    return {reinterpret_cast<const char*>(velocity_.data()), velocity_.size() * sizeof(float)};
  }
  void load(const std::string& bytes) {
    velocity_.resize(bytes.size() / sizeof(float));
    std::memcpy(velocity_.data(), bytes.data(), velocity_.size() * sizeof(float));
  }

 private:
  std::vector<float> velocity_;
};

/// `steps` times the gradient, into memory that the library allocates, and the update.
template <class Gradient, class Rule>
void optimize(std::vector<float>& weights, std::size_t steps, Gradient write_gradient, Rule& rule) {
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<float> gradient(weights.size());
    write_gradient(step, weights, gradient);
    rule.update(weights, gradient);
  }
}

}  // namespace library

/// The library's rule, after the gradients' average over the ranks.
template <class Rule>
class Averaged {
 public:
  Averaged(dtrain::ProcessGroup<Policy> group, std::vector<float>& weights, Rule& rule)
      : reduced_(weights.size()),
        ddp_(dtrain::ParameterList{{"weights", dtrain::tensor_view(weights), dtrain::tensor_view(reduced_)}},
             std::move(group)),
        rule_(rule) {}

  void update(std::span<float> weights, std::span<float> gradient) {
    ddp_.backward([&](dtrain::Ready ready) { ready(0, dtrain::tensor_view(gradient)); });  // lies elsewhere each time
    rule_.update(weights, reduced_);
  }

 private:
  std::vector<float> reduced_;
  dtrain::DistributedDataParallel<dtrain::ParameterList, Policy> ddp_;
  Rule& rule_;
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    std::vector<float> weights(2);
    library::Momentum momentum;

    std::string solver;  // the library's own serialisation: its length may change
    std::vector<dtrain::NamedTensor> state{{"weights", dtrain::tensor_view(weights)}};
    state.push_back(dtrain::NamedBytes{"solver", solver});
    if (arguments.size() > 1 && dtrain::load_checkpoint(group, arguments[1], state)) momentum.load(solver);

    Averaged averaged{group, weights, momentum};
    const dtrain::DistributedSampler sampler{group,
                                             {.dataset_size = 1000, .global_batch = 48, .seed = 1, .drop_last = true}};
    const dtrain::SampleBatches batches = sampler.batches(0);
    const auto write_gradient = [&](std::size_t step, std::span<const float> at, std::span<float> gradient) {
      const std::span<const std::size_t> samples = batches[step % batches.size()];
      for (const std::size_t sample : samples) {  // the mean of (w0 * x + w1 - (3x + 1))^2
        const float x = static_cast<float>(sample) / 500 - 1;
        const float error = at[0] * x + at[1] - (3 * x + 1);
        gradient[0] += 2 * error * x / static_cast<float>(samples.size());
        gradient[1] += 2 * error / static_cast<float>(samples.size());
      }
    };
    library::optimize(weights, 100, write_gradient, averaged);

    solver = momentum.save();
    if (arguments.size() > 1) dtrain::save_checkpoint(group, arguments[1], state);
    if (group.rank() == 0) std::printf("y = %.5f x + %.5f\n", weights[0], weights[1]);
    return 0;
  });
}
