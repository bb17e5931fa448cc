#pragma once
/// @file
/// Changes one gradient on its way, so that a test can see it arrive on every rank.

#include <cstddef>
#include <span>

#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"

namespace fashion_mnist {

/// Stands between a backward pass and DDP: adds 1 to the first element of parameter 0's gradient just before it is said
/// to be ready. Lifetime: outlives the backward pass that it is given to.
class Perturbation final : public dtrain::Ready::Sink {
 public:
  Perturbation(std::span<const dtrain::Parameter> parameters, dtrain::Ready next) noexcept
      : parameters_(parameters), next_(next) {}

  void ready(std::size_t parameter) override {
    change(parameter, parameters_[parameter].gradient);
    next_(parameter);
  }
  void ready(std::size_t parameter, dtrain::StreamHandle stream) override {
    change(parameter, parameters_[parameter].gradient);
    next_(parameter, stream);
  }
  void ready(std::size_t parameter, const dtrain::TensorView& gradient, dtrain::StreamHandle stream) override {
    change(parameter, gradient);
    next_(parameter, gradient, stream);
  }

 private:
  static void change(std::size_t parameter, const dtrain::TensorView& gradient) {
    if (parameter == 0) gradient.as<float>()[0] += 1;
  }

  std::span<const dtrain::Parameter> parameters_;
  dtrain::Ready next_;
};

}  // namespace fashion_mnist
