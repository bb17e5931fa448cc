#pragma once
/// @file
/// Rules of sharded optimizers: Sgd, Momentum, Adam, AdamW, RmsProp, Adagrad and Lamb; f64::, those of f64 models.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"
#include "dtrain/kernels/square_root.hpp"

/// Rules for ShardedOptimizer, computed in E: f32 or, for models of f64, f64. All but Lamb compute the same as the
/// optimizers in torch.optim, with the same defaults. A schedule may change members between steps, equally on all
/// ranks.
namespace DTRAIN_NAMESPACE::optimizers {

/// Plain SGD: w -= rate * (g + weight_decay * w).
/// @ingroup sharding
template <class E>
struct BasicSgd {
  E rate = E(1e-3);
  E weight_decay = 0;

  DTRAIN_OPTIMIZED void operator()(std::span<E> weights, std::span<const E> gradients, const StepInfo&) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] -= rate * (gradients[i] + weight_decay * weights[i]);
    }
  }
};

/// SGD with momentum: v = momentum * v + g + weight_decay * w; w -= rate * v. Nesterov's form subtracts
/// rate * (g + weight_decay * w + momentum * v).
/// @ingroup sharding
template <class E>
struct BasicMomentum {
  E rate = E(1e-3);
  E momentum = E(0.9);
  E weight_decay = 0;
  bool nesterov = false;

  struct State {
    static constexpr std::string_view names[] = {"momentum_buffer"};
    std::span<E> velocity;
  };

  DTRAIN_OPTIMIZED void operator()(std::span<E> weights, std::span<const E> gradients, State state,
                                   const StepInfo&) const {
    const E carried = nesterov ? momentum : E(1);
    const E direct = nesterov ? E(1) : E(0);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const E gradient = gradients[i] + weight_decay * weights[i];
      const E velocity = momentum * state.velocity[i] + gradient;
      state.velocity[i] = velocity;
      weights[i] -= rate * (direct * gradient + carried * velocity);
    }
  }
};

namespace detail {

/// The arithmetic of Adam (Kingma and Ba 2015, algorithm 1).
template <class E>
struct AdamStep {
  E beta1;
  E beta2;
  E epsilon;
  E step_size;       ///< rate / (1 - beta1^t)
  E root_of_second;  ///< sqrt(1 - beta2^t)
  E kept;            ///< factor of each weight before the step
  E coupled_decay;   ///< this factor times the weight is added to the gradient

  template <class Rule>
  AdamStep(const Rule& rule, const StepInfo& info, E kept_part, E coupled) noexcept
      : AdamStep(rule.rate, rule.beta1, rule.beta2, rule.epsilon, info.step, kept_part, coupled) {}
  AdamStep(E rate, E beta1_, E beta2_, E epsilon_, std::uint64_t step, E kept_part, E coupled) noexcept;

  /// All arrays have `count` elements and do not overlap.
  void operator()(E* weights, const E* gradients, E* means, E* squares, std::size_t count) const noexcept;
};

}  // namespace detail

/// Adam; weight_decay is added to the gradient.
/// @ingroup sharding
template <class E>
struct BasicAdam {
  E rate = E(1e-3);
  E beta1 = E(0.9);
  E beta2 = E(0.999);
  E epsilon = E(1e-8);
  E weight_decay = 0;

  struct State {
    static constexpr std::string_view names[] = {"exp_avg", "exp_avg_sq"};
    std::span<E> mean;
    std::span<E> square;
  };

  /// The arithmetic of one update.
  detail::AdamStep<E> step(const StepInfo& info) const noexcept { return {*this, info, 1, weight_decay}; }

  void operator()(std::span<E> weights, std::span<const E> gradients, State state, const StepInfo& info) const {
    const detail::AdamStep<E> update = step(info);
    update(weights.data(), gradients.data(), state.mean.data(), state.square.data(), weights.size());
  }
};

/// Adam with decoupled decay (Loshchilov and Hutter 2019): w -= rate * weight_decay * w before the step.
/// @ingroup sharding
template <class E>
struct BasicAdamW {
  E rate = E(1e-3);
  E beta1 = E(0.9);
  E beta2 = E(0.999);
  E epsilon = E(1e-8);
  E weight_decay = E(1e-2);

  using State = typename BasicAdam<E>::State;

  /// The arithmetic of one update.
  detail::AdamStep<E> step(const StepInfo& info) const noexcept { return {*this, info, 1 - rate * weight_decay, 0}; }

  void operator()(std::span<E> weights, std::span<const E> gradients, State state, const StepInfo& info) const {
    const detail::AdamStep<E> update = step(info);
    update(weights.data(), gradients.data(), state.mean.data(), state.square.data(), weights.size());
  }
};

/// RMSprop (Hinton, 2012), not centered: s = alpha * s + (1 - alpha) * g^2; v = momentum * v + g / (sqrt(s) + epsilon);
/// w -= rate * v. weight_decay is added to the gradient.
/// @ingroup sharding
template <class E>
struct BasicRmsProp {
  E rate = E(1e-2);
  E alpha = E(0.99);
  E epsilon = E(1e-8);
  E weight_decay = 0;
  E momentum = 0;

  struct State {
    static constexpr std::string_view names[] = {"square_avg", "momentum_buffer"};
    std::span<E> square;
    std::span<E> velocity;
  };

  DTRAIN_OPTIMIZED void operator()(std::span<E> weights, std::span<const E> gradients, State state,
                                   const StepInfo&) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const E gradient = gradients[i] + weight_decay * weights[i];
      const E square = alpha * state.square[i] + (1 - alpha) * gradient * gradient;
      const E velocity = momentum * state.velocity[i] + gradient / (kernels::square_root(square) + epsilon);
      state.square[i] = square;
      state.velocity[i] = velocity;
      weights[i] -= rate * velocity;
    }
  }
};

/// Adagrad (Duchi et al., 2011): s += g^2; w -= rate / (1 + (t - 1) * rate_decay) * g / (sqrt(s) + epsilon) in step t.
/// s begins as initial_sum. weight_decay is added to the gradient.
/// @ingroup sharding
template <class E>
struct BasicAdagrad {
  E rate = E(1e-2);
  E rate_decay = 0;
  E weight_decay = 0;
  E initial_sum = 0;
  E epsilon = E(1e-10);

  struct State {
    static constexpr std::string_view names[] = {"sum"};
    std::span<E> sum;
  };

  DTRAIN_OPTIMIZED void operator()(std::span<E> weights, std::span<const E> gradients, State state,
                                   const StepInfo& info) const {
    const E decayed = rate / (1 + static_cast<E>(info.step - 1) * rate_decay);
    const E added = info.step == 1 ? initial_sum : 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const E gradient = gradients[i] + weight_decay * weights[i];
      const E sum = state.sum[i] + added + gradient * gradient;
      state.sum[i] = sum;
      weights[i] -= decayed * gradient / (kernels::square_root(sum) + epsilon);
    }
  }
};

/// LAMB (You et al., 2020, algorithm 2, with the identity for phi), for large batches: w -= rate * |w| / |u| * u, where
/// u is Adam's step plus weight_decay * w, and |w| and |u| are the L2 norms of a whole parameter. Where one of them is
/// 0, w -= rate * u.
/// @ingroup sharding
template <class E>
struct BasicLamb {
  E rate = E(1e-3);
  E beta1 = E(0.9);
  E beta2 = E(0.999);
  E epsilon = E(1e-6);
  E weight_decay = E(1e-2);

  using State = typename BasicAdam<E>::State;

  /// Updates the moments. @returns the squares of |w| and |u|
  ParameterNorms measure(std::span<const E> weights, std::span<const E> gradients, State state,
                         const StepInfo& info) const;

  void operator()(std::span<E> weights, std::span<const E> gradients, State state, const StepInfo& info) const;
};

using Sgd = BasicSgd<float>;
using Momentum = BasicMomentum<float>;
using Adam = BasicAdam<float>;
using AdamW = BasicAdamW<float>;
using RmsProp = BasicRmsProp<float>;
using Adagrad = BasicAdagrad<float>;
using Lamb = BasicLamb<float>;

/// The same rules for models of f64 in host memory.
namespace f64 {
using Sgd = BasicSgd<double>;
using Momentum = BasicMomentum<double>;
using Adam = BasicAdam<double>;
using AdamW = BasicAdamW<double>;
using RmsProp = BasicRmsProp<double>;
using Adagrad = BasicAdagrad<double>;
using Lamb = BasicLamb<double>;
}  // namespace f64

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

template <class E>
AdamStep<E>::AdamStep(E rate, E beta1_, E beta2_, E epsilon_, std::uint64_t step, E kept_part, E coupled) noexcept
    : beta1(beta1_),
      beta2(beta2_),
      epsilon(epsilon_),
      step_size(static_cast<E>(rate / (1 - std::pow(double{beta1_}, static_cast<double>(step))))),
      root_of_second(static_cast<E>(std::sqrt(1 - std::pow(double{beta2_}, static_cast<double>(step))))),
      kept(kept_part),
      coupled_decay(coupled) {}

/// Updates 16 bytes at a time, four floats in a quarter of the time of a loop over single ones. Pads the last ones.
template <class E>
DTRAIN_OPTIMIZED void AdamStep<E>::operator()(E* weights, const E* gradients, E* means, E* squares,
                                              std::size_t count) const noexcept {
  using Lanes = kernels::Vector<E, 16>;
  constexpr std::size_t lanes = sizeof(Lanes) / sizeof(E);
  const AdamStep step = *this;  // registers: the arrays might overlap this object, for all that the compiler knows
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
    update(count - left, left * sizeof(E));
  }
}

/// Step of Lamb for each weight: the term that is subtracted, without the factor from the norms.
template <class E>
class LambStep {
 public:
  static constexpr std::size_t block = 256;  ///< elements that are computed at once
  using Block = std::array<E, block>;

  LambStep(const BasicLamb<E>& rule, std::uint64_t step) noexcept
      : mean_factor_(static_cast<E>(1 / (1 - std::pow(double{rule.beta1}, static_cast<double>(step))))),
        root_factor_(static_cast<E>(1 / std::sqrt(1 - std::pow(double{rule.beta2}, static_cast<double>(step))))),
        epsilon_(rule.epsilon),
        weight_decay_(rule.weight_decay) {}

  /// Calls `use(begin, step, count)` for each block: `step` belongs to elements [begin, begin + count).
  template <class Use>
  void for_each_block(std::span<const E> weights, const typename BasicLamb<E>::State& state, Use&& use) const {
    alignas(64) Block block_of_steps;
    for (std::size_t begin = 0; begin < weights.size(); begin += block) {
      const std::size_t count = std::min(block, weights.size() - begin);
      compute(block_of_steps, weights.data() + begin, state.mean.data() + begin, state.square.data() + begin, count);
      use(begin, block_of_steps, count);
    }
  }

 private:
  DTRAIN_OPTIMIZED void compute(Block& to, const E* weights, const E* means, const E* squares,
                                std::size_t count) const noexcept {
    using Lanes = kernels::Vector<E, 16>;
    constexpr std::size_t lanes = sizeof(Lanes) / sizeof(E);
    for (std::size_t i = 0; i < count; i += lanes) {
      const std::size_t bytes = std::min(lanes, count - i) * sizeof(E);
      Lanes weight{}, mean{}, root{};
      std::memcpy(&weight, weights + i, bytes);
      std::memcpy(&mean, means + i, bytes);
      std::memcpy(&root, squares + i, bytes);
      kernels::take_square_roots(root);
      const auto step = mean * mean_factor_ / (root * root_factor_ + epsilon_) + weight_decay_ * weight;
      std::memcpy(to.data() + i, &step, sizeof(step));
    }
  }

  E mean_factor_;  ///< 1 / (1 - beta1^t)
  E root_factor_;  ///< 1 / sqrt(1 - beta2^t)
  E epsilon_;
  E weight_decay_;
};

}  // namespace DTRAIN_NAMESPACE::optimizers::detail

namespace DTRAIN_NAMESPACE::optimizers {

template <class E>
DTRAIN_OPTIMIZED ParameterNorms BasicLamb<E>::measure(std::span<const E> weights, std::span<const E> gradients,
                                                      State state, const StepInfo& info) const {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    state.mean[i] += (gradients[i] - state.mean[i]) * (1 - beta1);
    state.square[i] = beta2 * state.square[i] + (1 - beta2) * gradients[i] * gradients[i];
  }
  const auto squares_of = [](const E* from, std::size_t count) {
    return kernels::sum_of_squares(dtype_of<E>::value, reinterpret_cast<const std::byte*>(from), count);
  };
  ParameterNorms squares{squares_of(weights.data(), weights.size()), 0};
  detail::LambStep<E>(*this, info.step)
      .for_each_block(weights, state,
                      [&](std::size_t, const typename detail::LambStep<E>::Block& step, std::size_t count) {
                        squares.update += squares_of(step.data(), count);
                      });
  return squares;
}

template <class E>
void BasicLamb<E>::operator()(std::span<E> weights, std::span<const E>, State state, const StepInfo& info) const {
  const bool has_ratio = info.norms.weights > 0 && info.norms.update > 0;
  const auto factor = static_cast<E>(rate * (has_ratio ? info.norms.weights / info.norms.update : 1.0));
  detail::LambStep<E>(*this, info.step)
      .for_each_block(weights, state,
                      [&](std::size_t begin, const typename detail::LambStep<E>::Block& step, std::size_t count) {
                        for (std::size_t i = 0; i < count; ++i) {
                          weights[begin + i] -= factor * step[i];
                        }
                      });
}

#if DTRAIN_SEPARATE_COMPILATION  // else each file instantiates what it uses
template struct detail::AdamStep<float>;
template struct detail::AdamStep<double>;
template struct BasicLamb<float>;
template struct BasicLamb<double>;
#endif

}  // namespace DTRAIN_NAMESPACE::optimizers

#endif  // DTRAIN_DEFINITIONS
