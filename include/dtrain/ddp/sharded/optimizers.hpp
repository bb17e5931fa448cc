#pragma once
/// @file
/// Rules of common optimizers: Sgd, Momentum, Adam and AdamW.

#include <cmath>
#include <cstddef>
#include <span>

#include "dtrain/ddp/sharded/optimizer_rule.hpp"

/// Rules for ShardedOptimizer. Each computes in f32 what the optimizer of the same name in torch.optim does, with the
/// same defaults. Members may be changed between steps, for a schedule; the same on all ranks.
namespace DTRAIN_NAMESPACE::optimizers {

/// w -= rate * (g + weight_decay * w).
struct Sgd {
  float rate = 1e-3F;
  float weight_decay = 0;

  void operator()(std::span<float> weights, std::span<const float> gradients, const StepInfo&) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] -= rate * (gradients[i] + weight_decay * weights[i]);
    }
  }
};

/// SGD with momentum: v = momentum * v + g + weight_decay * w; w -= rate * v. Nesterov's form subtracts
/// rate * (g + weight_decay * w + momentum * v).
struct Momentum {
  float rate = 1e-3F;
  float momentum = 0.9F;
  float weight_decay = 0;
  bool nesterov = false;

  struct State {
    std::span<float> velocity;
  };

  void operator()(std::span<float> weights, std::span<const float> gradients, State state, const StepInfo&) const {
    const float carried = nesterov ? momentum : 1;
    const float direct = nesterov ? 1.0F : 0.0F;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float gradient = gradients[i] + weight_decay * weights[i];
      const float velocity = momentum * state.velocity[i] + gradient;
      state.velocity[i] = velocity;
      weights[i] -= rate * (direct * gradient + carried * velocity);
    }
  }
};

namespace detail {

/// The arithmetic of Adam (Kingma and Ba 2015, algorithm 1), on a weight that has decayed already.
struct AdamStep {
  float beta1;
  float beta2;
  float epsilon;
  float step_size;       ///< rate / (1 - beta1^t)
  float root_of_second;  ///< sqrt(1 - beta2^t)

  template <class Rule>
  AdamStep(const Rule& rule, const StepInfo& info) noexcept
      : beta1(rule.beta1),
        beta2(rule.beta2),
        epsilon(rule.epsilon),
        step_size(static_cast<float>(rule.rate / (1 - std::pow(double{rule.beta1}, static_cast<double>(info.step))))),
        root_of_second(
            static_cast<float>(std::sqrt(1 - std::pow(double{rule.beta2}, static_cast<double>(info.step))))) {}

  void operator()(float& weight, float gradient, float& mean, float& square) const noexcept {
    mean += (gradient - mean) * (1 - beta1);
    square = beta2 * square + (1 - beta2) * gradient * gradient;
    weight -= step_size * mean / (std::sqrt(square) / root_of_second + epsilon);
  }
};

}  // namespace detail

/// Adam; weight_decay is added to the gradient.
struct Adam {
  float rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0;

  struct State {
    std::span<float> mean;
    std::span<float> square;
  };

  void operator()(std::span<float> weights, std::span<const float> gradients, State state, const StepInfo& info) const {
    const detail::AdamStep update(*this, info);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      update(weights[i], gradients[i] + weight_decay * weights[i], state.mean[i], state.square[i]);
    }
  }
};

/// Adam with decoupled decay (Loshchilov and Hutter 2019): w -= rate * weight_decay * w before the step.
struct AdamW {
  float rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 1e-2F;

  using State = Adam::State;

  void operator()(std::span<float> weights, std::span<const float> gradients, State state, const StepInfo& info) const {
    const detail::AdamStep update(*this, info);
    const float kept = 1 - rate * weight_decay;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      float weight = weights[i] * kept;
      update(weight, gradients[i], state.mean[i], state.square[i]);
      weights[i] = weight;
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::optimizers
