#pragma once
/// @file
/// Stochastic gradient descent with Nesterov's momentum.

#include <Eigen/Core>
#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace fashion_mnist {

/// Holds a velocity for each element of float parameters; every rank holds the same.
class Sgd {
 public:
  explicit Sgd(float momentum) : momentum_(momentum) {}

  /// v = momentum v + g; value -= rate (g + momentum v). The list is the same at each call but for gradients'
  /// addresses.
  void step(std::span<const dtrain::Parameter> parameters, float rate) {
    prepare(parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto values = parameters[i].value.as<float>();
      const auto size = static_cast<Eigen::Index>(values.size());
      Eigen::Map<Eigen::ArrayXf> value(values.data(), size);
      const Eigen::Map<const Eigen::ArrayXf> gradient(parameters[i].gradient.as<float>().data(), size);
      velocity_[i] = momentum_ * velocity_[i] + gradient;
      value -= rate * (gradient + momentum_ * velocity_[i]);
    }
  }

  /// What it keeps from step to step, for a checkpoint. Lifetime: valid as long as this object.
  std::vector<dtrain::NamedTensor> velocities(std::span<const dtrain::Parameter> parameters) {
    prepare(parameters);
    std::vector<dtrain::NamedTensor> all;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      all.push_back(
          {parameters[i].name + ".velocity", dtrain::tensor_view(velocity_[i].data(), parameters[i].value.shape)});
    }
    return all;
  }

  /// After what velocities() shows was written to.
  void take_velocities() const noexcept {}

 private:
  void prepare(std::span<const dtrain::Parameter> parameters) {
    if (!velocity_.empty()) return;
    for (const dtrain::Parameter& parameter : parameters) {
      velocity_.emplace_back(Eigen::ArrayXf::Zero(static_cast<Eigen::Index>(parameter.value.shape.element_count())));
    }
  }

  float momentum_;
  std::vector<Eigen::ArrayXf> velocity_;
};

}  // namespace fashion_mnist
