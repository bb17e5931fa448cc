#pragma once
/// @file
/// Changes one gradient on its way, so that a test can see it arrive on every rank.

#include <cstddef>

#include "dtrain/ddp/ready.hpp"

namespace fashion_mnist {

/// Stands between a model's backward pass and DDP: adds 1 to the first element of parameter 0's gradient just before it
/// is said to be ready. Lifetime: outlives the backward pass that it is given to.
template <class Model>
class Perturbation final : public dtrain::Ready::Sink {
 public:
  Perturbation(Model& model, dtrain::Ready next) noexcept : model_(&model), next_(next) {}

  void ready(std::size_t parameter) override {
    change(parameter);
    next_(parameter);
  }
  void ready(std::size_t parameter, dtrain::StreamHandle stream) override {
    change(parameter);
    next_(parameter, stream);
  }
  void ready(std::size_t parameter, const dtrain::TensorView& gradient, dtrain::StreamHandle stream) override {
    change(parameter);
    next_(parameter, gradient, stream);
  }

 private:
  void change(std::size_t parameter) {
    if (parameter == 0) model_->add_to_first_gradient(1);
  }

  Model* model_;
  dtrain::Ready next_;
};

}  // namespace fashion_mnist
