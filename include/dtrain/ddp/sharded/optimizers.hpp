#pragma once
/// @file
/// Rules of common optimizers: Sgd, Momentum, Adam, AdamW, RmsProp, Adagrad and Lamb. A program gives one to its
/// ShardedOptimizer.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"

/// Rules for ShardedOptimizer, computed in f32. All but Lamb compute the same as the optimizers in torch.optim, with
/// the same defaults. A schedule may change members between steps, equally on all ranks.
namespace DTRAIN_NAMESPACE::optimizers {

/// Plain SGD: w -= rate * (g + weight_decay * w).
/// @ingroup sharding
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
/// @ingroup sharding
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
  float kept;            ///< factor of each weight before the step
  float coupled_decay;   ///< this factor times the weight is added to the gradient

  template <class Rule>
  AdamStep(const Rule& rule, const StepInfo& info, float kept_part, float coupled) noexcept
      : AdamStep(rule.rate, rule.beta1, rule.beta2, rule.epsilon, info.step, kept_part, coupled) {}
  AdamStep(float rate, float beta1_, float beta2_, float epsilon_, std::uint64_t step, float kept_part,
           float coupled) noexcept;

  /// All arrays have `count` elements and do not overlap.
  void operator()(float* weights, const float* gradients, float* means, float* squares,
                  std::size_t count) const noexcept;
};

}  // namespace detail

/// Adam; weight_decay is added to the gradient.
/// @ingroup sharding
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

  /// The arithmetic of one update.
  detail::AdamStep step(const StepInfo& info) const noexcept { return {*this, info, 1, weight_decay}; }

  void operator()(std::span<float> weights, std::span<const float> gradients, State state, const StepInfo& info) const {
    const detail::AdamStep update = step(info);
    update(weights.data(), gradients.data(), state.mean.data(), state.square.data(), weights.size());
  }
};

/// Adam with decoupled decay (Loshchilov and Hutter 2019): w -= rate * weight_decay * w before the step.
/// @ingroup sharding
struct AdamW {
  float rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 1e-2F;

  using State = Adam::State;

  /// The arithmetic of one update.
  detail::AdamStep step(const StepInfo& info) const noexcept { return {*this, info, 1 - rate * weight_decay, 0}; }

  void operator()(std::span<float> weights, std::span<const float> gradients, State state, const StepInfo& info) const {
    const detail::AdamStep update = step(info);
    update(weights.data(), gradients.data(), state.mean.data(), state.square.data(), weights.size());
  }
};

/// RMSprop (Hinton, 2012), not centered: s = alpha * s + (1 - alpha) * g^2; v = momentum * v + g / (sqrt(s) + epsilon);
/// w -= rate * v. weight_decay is added to the gradient.
/// @ingroup sharding
struct RmsProp {
  float rate = 1e-2F;
  float alpha = 0.99F;
  float epsilon = 1e-8F;
  float weight_decay = 0;
  float momentum = 0;

  struct State {
    std::span<float> square;
    std::span<float> velocity;
  };

  DTRAIN_OPTIMIZED void operator()(std::span<float> weights, std::span<const float> gradients, State state,
                                   const StepInfo&) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float gradient = gradients[i] + weight_decay * weights[i];
      const float square = alpha * state.square[i] + (1 - alpha) * gradient * gradient;
      const float velocity = momentum * state.velocity[i] + gradient / (std::sqrt(square) + epsilon);
      state.square[i] = square;
      state.velocity[i] = velocity;
      weights[i] -= rate * velocity;
    }
  }
};

/// Adagrad (Duchi et al., 2011): s += g^2; w -= rate / (1 + (t - 1) * rate_decay) * g / (sqrt(s) + epsilon) in step t.
/// s begins as initial_sum. weight_decay is added to the gradient.
/// @ingroup sharding
struct Adagrad {
  float rate = 1e-2F;
  float rate_decay = 0;
  float weight_decay = 0;
  float initial_sum = 0;
  float epsilon = 1e-10F;

  struct State {
    std::span<float> sum;
  };

  DTRAIN_OPTIMIZED void operator()(std::span<float> weights, std::span<const float> gradients, State state,
                                   const StepInfo& info) const {
    const float decayed = rate / (1 + static_cast<float>(info.step - 1) * rate_decay);
    const float added = info.step == 1 ? initial_sum : 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float gradient = gradients[i] + weight_decay * weights[i];
      const float sum = state.sum[i] + added + gradient * gradient;
      state.sum[i] = sum;
      weights[i] -= decayed * gradient / (std::sqrt(sum) + epsilon);
    }
  }
};

/// LAMB (You et al., 2020, algorithm 2, with the identity for phi), for large batches: w -= rate * |w| / |u| * u, where
/// u is Adam's step plus weight_decay * w, and |w| and |u| are the L2 norms of a whole parameter. Where one of them is
/// 0, w -= rate * u.
/// @ingroup sharding
struct Lamb {
  float rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-6F;
  float weight_decay = 1e-2F;

  using State = Adam::State;

  /// Updates the moments. @returns the squares of |w| and |u|
  ParameterNorms measure(std::span<const float> weights, std::span<const float> gradients, State state,
                         const StepInfo& info) const;

  void operator()(std::span<float> weights, std::span<const float> gradients, State state, const StepInfo& info) const;
};

}  // namespace DTRAIN_NAMESPACE::optimizers

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::optimizers::detail {

DTRAIN_DEFINED AdamStep::AdamStep(float rate, float beta1_, float beta2_, float epsilon_, std::uint64_t step,
                                  float kept_part, float coupled) noexcept
    : beta1(beta1_),
      beta2(beta2_),
      epsilon(epsilon_),
      step_size(static_cast<float>(rate / (1 - std::pow(double{beta1_}, static_cast<double>(step))))),
      root_of_second(static_cast<float>(std::sqrt(1 - std::pow(double{beta2_}, static_cast<double>(step))))),
      kept(kept_part),
      coupled_decay(coupled) {}

/// Updates four elements at a time, in a quarter of the time of a loop over single elements. Pads the last ones.
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
  const std::size_t left = count % lanes;
  for (std::size_t i = 0; i < count - left; i += lanes) {
    update(i, sizeof(Lanes));
  }
  if (left > 0) {
    update(count - left, left * sizeof(float));
  }
}

/// Step of Lamb for each weight: the term that is subtracted, without the factor from the norms.
class LambStep {
 public:
  static constexpr std::size_t block = 256;  ///< elements that are computed at once
  using Block = std::array<float, block>;

  LambStep(const Lamb& rule, std::uint64_t step) noexcept
      : mean_factor_(static_cast<float>(1 / (1 - std::pow(double{rule.beta1}, static_cast<double>(step))))),
        root_factor_(static_cast<float>(1 / std::sqrt(1 - std::pow(double{rule.beta2}, static_cast<double>(step))))),
        epsilon_(rule.epsilon),
        weight_decay_(rule.weight_decay) {}

  /// Calls `use(begin, step, count)` for each block: `step` belongs to elements [begin, begin + count).
  template <class Use>
  void for_each_block(std::span<const float> weights, const Lamb::State& state, Use&& use) const {
    alignas(64) Block block_of_steps;
    for (std::size_t begin = 0; begin < weights.size(); begin += block) {
      const std::size_t count = std::min(block, weights.size() - begin);
      compute(block_of_steps, weights.data() + begin, state.mean.data() + begin, state.square.data() + begin, count);
      use(begin, block_of_steps, count);
    }
  }

 private:
  DTRAIN_OPTIMIZED void compute(Block& to, const float* weights, const float* means, const float* squares,
                                std::size_t count) const noexcept {
    constexpr std::size_t lanes = 4;
    for (std::size_t i = 0; i < count; i += lanes) {
      const std::size_t bytes = std::min(lanes, count - i) * sizeof(float);
      kernels::Vector<float, lanes * sizeof(float)> weight{}, mean{}, root{};
      std::memcpy(&weight, weights + i, bytes);
      std::memcpy(&mean, means + i, bytes);
      std::memcpy(&root, squares + i, bytes);
      kernels::take_square_roots(root);
      const auto step = mean * mean_factor_ / (root * root_factor_ + epsilon_) + weight_decay_ * weight;
      std::memcpy(to.data() + i, &step, sizeof(step));
    }
  }

  float mean_factor_;  ///< 1 / (1 - beta1^t)
  float root_factor_;  ///< 1 / sqrt(1 - beta2^t)
  float epsilon_;
  float weight_decay_;
};

}  // namespace DTRAIN_NAMESPACE::optimizers::detail

namespace DTRAIN_NAMESPACE::optimizers {

DTRAIN_OPTIMIZED DTRAIN_DEFINED ParameterNorms Lamb::measure(std::span<const float> weights,
                                                             std::span<const float> gradients, State state,
                                                             const StepInfo& info) const {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    state.mean[i] += (gradients[i] - state.mean[i]) * (1 - beta1);
    state.square[i] = beta2 * state.square[i] + (1 - beta2) * gradients[i] * gradients[i];
  }
  const auto squares_of = [](const float* from, std::size_t count) {
    return kernels::sum_of_squares(DType::f32, reinterpret_cast<const std::byte*>(from), count);
  };
  ParameterNorms squares{squares_of(weights.data(), weights.size()), 0};
  detail::LambStep(*this, info.step)
      .for_each_block(weights, state, [&](std::size_t, const detail::LambStep::Block& step, std::size_t count) {
        squares.update += squares_of(step.data(), count);
      });
  return squares;
}

DTRAIN_DEFINED void Lamb::operator()(std::span<float> weights, std::span<const float>, State state,
                                     const StepInfo& info) const {
  const bool has_ratio = info.norms.weights > 0 && info.norms.update > 0;
  const auto factor = static_cast<float>(rate * (has_ratio ? info.norms.weights / info.norms.update : 1.0));
  detail::LambStep(*this, info.step)
      .for_each_block(weights, state, [&](std::size_t begin, const detail::LambStep::Block& step, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
          weights[begin + i] -= factor * step[i];
        }
      });
}

}  // namespace DTRAIN_NAMESPACE::optimizers

#endif  // DTRAIN_DEFINITIONS
