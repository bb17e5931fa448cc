#pragma once
/// @file
/// Rules of common optimizers: Sgd, Momentum, Adam and AdamW.

#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"
#include "dtrain/kernels/vector.hpp"

/// Rules for ShardedOptimizer. Each computes in f32 what the optimizer of the same name in torch.optim does, with the
/// same defaults. Members may be changed between steps, for a schedule; the same on all ranks.
namespace DTRAIN_NAMESPACE::optimizers {

/// w -= rate * (g + weight_decay * w).
struct Sgd {
  float rate = 1e-3F;
  float weight_decay = 0;

  DTRAIN_OPTIMIZED void operator()(std::span<float> weights, std::span<const float> gradients, const StepInfo&) const {
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

  DTRAIN_OPTIMIZED void operator()(std::span<float> weights, std::span<const float> gradients, State state,
                                   const StepInfo&) const {
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

/// The arithmetic of Adam (Kingma and Ba 2015, algorithm 1).
struct AdamStep {
  float beta1;
  float beta2;
  float epsilon;
  float step_size;       ///< rate / (1 - beta1^t)
  float root_of_second;  ///< sqrt(1 - beta2^t)
  float kept;            ///< of each weight, before the step
  float coupled_decay;   ///< times the weight is added to the gradient

  template <class Rule>
  AdamStep(const Rule& rule, const StepInfo& info, float kept_part, float coupled) noexcept
      : beta1(rule.beta1),
        beta2(rule.beta2),
        epsilon(rule.epsilon),
        step_size(static_cast<float>(rule.rate / (1 - std::pow(double{rule.beta1}, static_cast<double>(info.step))))),
        root_of_second(static_cast<float>(std::sqrt(1 - std::pow(double{rule.beta2}, static_cast<double>(info.step))))),
        kept(kept_part),
        coupled_decay(coupled) {}

  /// All arrays have `count` elements and do not overlap.
  void operator()(float* weights, const float* gradients, float* means, float* squares,
                  std::size_t count) const noexcept;
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
    const detail::AdamStep update(*this, info, 1, weight_decay);
    update(weights.data(), gradients.data(), state.mean.data(), state.square.data(), weights.size());
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
    const detail::AdamStep update(*this, info, 1 - rate * weight_decay, 0);
    update(weights.data(), gradients.data(), state.mean.data(), state.square.data(), weights.size());
  }
};

}  // namespace DTRAIN_NAMESPACE::optimizers

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::optimizers::detail {

/// Four elements at a time, which takes a quarter of the time of a loop over single ones; the last ones padded.
DTRAIN_OPTIMIZED DTRAIN_DEFINED void AdamStep::operator()(float* weights, const float* gradients, float* means,
                                                          float* squares, std::size_t count) const noexcept {
  constexpr std::size_t lanes = 4;
  using Lanes = kernels::Vector<float, lanes * sizeof(float)>;
  const AdamStep step = *this;  // in registers: the arrays might overlap this object, for all that the compiler knows
  const auto update = [&](std::size_t i, std::size_t bytes) __attribute__((always_inline)) {
    Lanes weight{};
    Lanes gradient{};
    Lanes mean{};
    Lanes square{};
    std::memcpy(&weight, weights + i, bytes);
    std::memcpy(&gradient, gradients + i, bytes);
    std::memcpy(&mean, means + i, bytes);
    std::memcpy(&square, squares + i, bytes);
    weight *= step.kept;
    gradient += step.coupled_decay * weight;
    mean += (gradient - mean) * (1 - step.beta1);
    square = step.beta2 * square + (1 - step.beta2) * gradient * gradient;
    Lanes root = square;
    kernels::take_square_roots(root);
    weight -= step.step_size * mean / (root / step.root_of_second + step.epsilon);
    std::memcpy(weights + i, &weight, bytes);
    std::memcpy(means + i, &mean, bytes);
    std::memcpy(squares + i, &square, bytes);
  };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    update(i, sizeof(Lanes));
  }
  if (i < count) {
    update(i, (count - i) * sizeof(float));
  }
}

}  // namespace DTRAIN_NAMESPACE::optimizers::detail

#endif  // DTRAIN_DEFINITIONS
