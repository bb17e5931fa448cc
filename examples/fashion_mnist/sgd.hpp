#pragma once
/// @file
/// Stochastic gradient descent with Nesterov's momentum, and the learning rate of each step.

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

#include "dtrain/ddp/parameter.hpp"

namespace fashion_mnist {

/// Rises over the first twentieth of the training, then falls along half a cosine to zero.
/// @param step counted from zero, below `steps`.
inline float learning_rate(std::int64_t step, std::int64_t steps, float peak) {
  const double done = (static_cast<double>(step) + 1) / static_cast<double>(steps);
  constexpr double warm_up = 0.05;
  if (done < warm_up) return static_cast<float>(peak * done / warm_up);
  return static_cast<float>(peak * 0.5 * (1 + std::cos(std::numbers::pi * (done - warm_up) / (1 - warm_up))));
}

/// Holds a velocity for each element of float parameters; every rank holds the same.
class Sgd {
 public:
  explicit Sgd(float momentum) : momentum_(momentum) {}

  /// v = momentum v + g; value -= rate (g + momentum v). The list is the same at each call but for gradients'
  /// addresses.
  void step(std::span<const dtrain::Parameter> parameters, float rate) {
    velocity_.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto values = parameters[i].value.as<float>();
      const auto size = static_cast<Eigen::Index>(values.size());
      if (velocity_[i].size() == 0) velocity_[i].setZero(size);
      Eigen::Map<Eigen::ArrayXf> value(values.data(), size);
      const Eigen::Map<const Eigen::ArrayXf> gradient(parameters[i].gradient.as<float>().data(), size);
      velocity_[i] = momentum_ * velocity_[i] + gradient;
      value -= rate * (gradient + momentum_ * velocity_[i]);
    }
  }

 private:
  float momentum_;
  std::vector<Eigen::ArrayXf> velocity_;
};

}  // namespace fashion_mnist
