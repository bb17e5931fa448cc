// Trains a small model for 50 steps on two ranks with sharded optimizers, and with PowerSGD:
//   optimizer_parity --nproc-per-node=2 FOLDER    rank 0 writes FOLDER/dtrain.CASE, a number a line
// optimizer_parity.py does the same with PyTorch's ZeroRedundancyOptimizer and powerSGD_hook, and compares.

#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

constexpr int steps = 50;

/// As values() of optimizer_parity.py.
float value(std::uint32_t seed, std::uint32_t i) {
  const std::uint32_t mixed = (1000003U * seed + i) * 2654435761U;
  return static_cast<float>(static_cast<double>(mixed) / 2147483648.0 - 1);
}

/// The loss of rank r in a step is the sum of 0.5 (w - t)^2, whose targets t differ by element, rank and step.
struct Model {
  explicit Model(std::vector<dtrain::Shape> shapes) {
    for (const dtrain::Shape& shape : shapes) {
      const auto count = static_cast<std::size_t>(shape.element_count());
      weights.emplace_back(count);
      gradients.emplace_back(count);
      const auto seed = static_cast<std::uint32_t>(list.size());
      for (std::uint32_t k = 0; k < count; ++k)
        weights.back()[k] = value(seed, k);
      list.push_back({"w" + std::to_string(list.size()), dtrain::tensor_view(weights.back().data(), shape),
                      dtrain::tensor_view(gradients.back().data(), shape)});
    }
  }
  const std::vector<dtrain::Parameter>& parameters() const { return list; }

  static float target(std::size_t i, std::uint32_t k, int rank, int step) {
    return value(static_cast<std::uint32_t>(1000 + 100 * step + 10 * rank + static_cast<int>(i)), k);
  }
  void backward(int rank, int step, const dtrain::Ready& ready) {
    for (std::size_t i = weights.size(); i-- > 0;) {
      for (std::uint32_t k = 0; k < weights[i].size(); ++k)
        gradients[i][k] = weights[i][k] - target(i, k, rank, step);
      ready(i);
    }
  }

  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> gradients;
  std::vector<dtrain::Parameter> list;
};

int write(const Group& group, const std::string& path, const std::vector<double>& numbers) {
  if (group.rank() != 0) return 0;
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return 1;
  for (const double number : numbers)
    std::fprintf(file, "%.17g\n", number);
  return std::fclose(file);
}

std::vector<double> all(const Model& model) {
  std::vector<double> numbers;
  for (const std::vector<float>& weights : model.weights)
    numbers.insert(numbers.end(), weights.begin(), weights.end());
  return numbers;
}

const std::vector<dtrain::Shape> shapes{{7}, {64, 33}, {128, 40}, {1}};

template <class Rule>
std::vector<double> sharded(const Group& group, Rule rule) {
  Model model(shapes);
  dtrain::DistributedDataParallel ddp{model, group, {.bucket_bytes = 16384}};
  dtrain::ShardedOptimizer optimizer{ddp, rule};
  for (int step = 0; step < steps; ++step)
    ddp.backward([&](const dtrain::Ready& ready) { model.backward(group.rank(), step, ready); }, optimizer);
  return all(model);
}

/// The targets do not change with the step. @returns the loss before each step, at the mean of the ranks' targets
std::vector<double> power_sgd(const Group& group) {
  Model model({{96, 64}, {64}});
  dtrain::hooks::PowerSgd hook{{.rank = 4, .start_after = 2}};
  dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    double loss = 0;
    for (std::size_t i = 0; i < model.weights.size(); ++i) {
      for (std::uint32_t k = 0; k < model.weights[i].size(); ++k) {
        const double mean = 0.5 * (static_cast<double>(Model::target(i, k, 0, 0)) + Model::target(i, k, 1, 0));
        loss += 0.5 * (model.weights[i][k] - mean) * (model.weights[i][k] - mean);
      }
    }
    losses.push_back(loss);
    ddp.backward([&](const dtrain::Ready& ready) { model.backward(group.rank(), 0, ready); });
    for (std::size_t i = 0; i < model.weights.size(); ++i) {
      for (std::size_t k = 0; k < model.weights[i].size(); ++k)
        model.weights[i][k] -= 0.05F * model.gradients[i][k];
    }
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](const Group& group, dtrain::Arguments arguments) {
    if (arguments.size() != 2) return 2;
    namespace optimizers = dtrain::optimizers;
    const std::string begin = std::string(arguments[1]) + "/dtrain.";
    return write(group, begin + "adamw", sharded(group, optimizers::AdamW{})) +
           write(group, begin + "momentum", sharded(group, optimizers::Momentum{.rate = 0.01F})) +
           write(group, begin + "power_sgd", power_sgd(group));
  });
}
