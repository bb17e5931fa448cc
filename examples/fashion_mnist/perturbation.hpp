#pragma once
/// @file
/// Changes one gradient on its way, so that a test can see it arrive on every rank.

#include "dtrain/ddp/ready.hpp"

namespace fashion_mnist {

/// Stands between a model's backward pass and DDP: adds 1 to the first element of parameter 0's gradient just before it
/// is said to be ready. Lifetime: outlives the backward pass that it is given to.
template <class Model>
class Perturbation final : public dtrain::Ready::Sink {
 public:
  Perturbation(Model& model, dtrain::Ready next) noexcept : model_(&model), next_(next) {}

  void ready(const dtrain::ReadyGradient& gradient) override {
    if (gradient.parameter == 0) model_->add_to_first_gradient(1);
    next_(gradient);
  }

 private:
  Model* model_;
  dtrain::Ready next_;
};

}  // namespace fashion_mnist
