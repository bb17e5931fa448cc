#pragma once
/// @file
/// Values, models and steps of the parity program, computed as parity_ddp.py does.

#include "expectations.hpp"

namespace parity {

using dtrain::libtorch::ModuleTensor;
using libtorch_probe::DistributedDataParallel;
using libtorch_probe::Group;
namespace nn = torch::nn;

inline constexpr int steps = 50;

/// Numbers from -1 to 1, of type f32: element i is ((1000003 seed + i) 2654435761 mod 2^32) / 2^31 - 1.
inline torch::Tensor values(const std::vector<std::int64_t>& shape, std::uint32_t seed) {
  const torch::Tensor made = torch::empty(shape);
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(made.numel()); ++i) {
    const std::uint32_t mixed = (1000003U * seed + i) * 2654435761U;
    made.data_ptr<float>()[i] = static_cast<float>(static_cast<double>(mixed) / 2147483648.0 - 1);
  }
  return made;
}

inline void fill(torch::Tensor tensor, std::uint32_t seed) {
  const torch::NoGradGuard no_grad;
  tensor.copy_(values(tensor.sizes().vec(), seed) * 0.5);
}

/// Parameter i of rank r is made from seed 100 r + i, so that only rank 0's may remain.
inline void fill_parameters(const nn::Module& module, int rank) {
  std::uint32_t i = 100 * static_cast<std::uint32_t>(rank);
  for (const torch::Tensor& parameter : module.parameters()) {
    fill(parameter, i++);
  }
}

inline std::uint32_t seed_of(int rank, int step, int pass = 0) {
  return static_cast<std::uint32_t>(1000 + 100 * step + 10 * pass + rank);
}

inline torch::Tensor inputs(int rank, int step, int pass = 0) {
  return values({4, 6}, seed_of(rank, step, pass));
}

inline torch::Tensor loss_of(const torch::Tensor& given, int rank, int step, int pass = 0) {
  const torch::Tensor output = given.scalar_type() == torch::kBFloat16 ? given.to(torch::kFloat32) : given;
  return torch::mse_loss(output, values(output.sizes().vec(), 50000 + seed_of(rank, step, pass)).to(output.dtype()));
}

/// 6 inputs, 3 outputs; `middle` is put between the layers.
template <class... Middle>
nn::Sequential layers(int rank, Middle... middle) {
  nn::Sequential net(nn::Linear(6, 16), std::move(middle)..., nn::Tanh(), nn::Linear(16, 3));
  fill_parameters(*net, rank);
  return net;
}

inline torch::optim::SGD plain_sgd(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1));
}
inline torch::optim::SGD momentum_sgd(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
}
inline torch::optim::AdamW adamw(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

enum class Gradients { set_to_none, kept };

/// LibTorch 1.13's optimizers cannot set gradients to none.
inline void zero_gradients(torch::optim::Optimizer& optimizer, Gradients gradients) {
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      torch::Tensor& gradient = parameter.mutable_grad();
      if (gradients == Gradients::set_to_none) {
        gradient.reset();
      } else if (gradient.defined()) {
        gradient.detach_().zero_();
      }
    }
  }
}

/// All steps: zero_grad, `backward(step)`, the optimizer's step.
template <class Optimizer, class Backward>
void train(Optimizer optimizer, Backward backward, Gradients gradients = Gradients::set_to_none) {
  for (int step = 0; step < steps; ++step) {
    zero_gradients(optimizer, gradients);
    backward(step);
    optimizer.step();
  }
}

/// Parameters and their gradients, then buffers; an undefined tensor stands for no gradient.
inline std::vector<ModuleTensor> state_of(const nn::Module& module, const std::string& prefix = "") {
  std::vector<ModuleTensor> state;
  std::vector<torch::Tensor> seen;
  for (const auto& item : module.named_parameters()) {
    bool is_tied = false;
    for (const torch::Tensor& other : seen) {
      is_tied = is_tied || other.is_same(item.value());
    }
    if (is_tied) continue;
    seen.push_back(item.value());
    state.push_back({prefix + item.key(), item.value()});
    state.push_back({prefix + item.key() + ".grad", item.value().grad()});
  }
  for (const auto& item : module.named_buffers()) {
    state.push_back({prefix + item.key(), item.value()});
  }
  return state;
}

}  // namespace parity
