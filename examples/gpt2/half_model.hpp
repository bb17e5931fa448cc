#pragma once
/// @file
/// The model with parameters and gradients in bf16.

#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model.hpp"

namespace gpt2 {

/// Model whose values and gradients are bf16: what dtrain reduces has half the bytes. The arithmetic of a layer stays
/// f32, on the widened values. Whoever updates the values keeps f32 ones (dtrain::MasterWeights, or
/// dtrain::ShardedOptimizer by itself): a small step would be lost in rounding. Threads: none but the one that uses it.
class HalfModel {
 public:
  using Element = dtrain::bfloat16;

  HalfModel(const ModelShape& shape, Index sequences, std::uint64_t seed)
      : model_(shape, sequences, seed), gradient_bytes_(model_.give_gradients_away()), wide_(model_.parameters()) {
    for (const dtrain::Parameter& wide : wide_) {
      const auto from = wide.value.as<float>();
      Element* const value = values_.emplace_back(from.size()).data();
      std::ranges::transform(from, value, [](float one) { return Element(one); });
      Element* const gradient = gradients_.emplace_back(from.size()).data();
      list_.push_back(
          {wide.name, dtrain::tensor_view(value, wide.value.shape), dtrain::tensor_view(gradient, wide.value.shape)});
    }
  }

  const std::vector<dtrain::Parameter>& parameters() const noexcept { return list_; }

  /// As BasicModel's.
  void bind_gradient(std::size_t index, const dtrain::TensorView& view) {
    list_.at(index).gradient = view;
    gradients_.at(index) = {};
  }

  /// As BasicModel's: gradients have no memory in parameters() from now on.
  std::size_t give_gradients_away() {
    std::size_t largest = 0;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      largest = std::max(largest, values_[i].size());
      list_[i].gradient = dtrain::tensor_view<Element>(nullptr, list_[i].value.shape);
      gradients_[i] = {};
    }
    gradient_memory_.resize(largest);
    return gradient_bytes_ + largest * sizeof(Element);
  }

  /// Of the f32 gradients that the backward pass computes.
  std::size_t gradient_bytes() const noexcept { return gradient_bytes_; }

  /// As BasicModel's, with the present values.
  double forward(const Batch& batch) {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      std::ranges::transform(values_[i], wide_[i].value.as<float>().begin(),
                             [](Element value) { return static_cast<float>(value); });
    }
    return model_.forward(batch);
  }

  /// As BasicModel's; each gradient is rounded to bf16 before it is said to be ready.
  void backward(const Batch& batch, dtrain::Ready ready, float weight = 1) {
    Narrowing narrowing(*this, ready);
    model_.backward(batch, dtrain::Ready(narrowing), weight);
  }

 private:
  /// Stands between the backward pass and the wrapper.
  class Narrowing final : public dtrain::Ready::Sink {
   public:
    Narrowing(HalfModel& model, dtrain::Ready next) : model_(&model), next_(next) {}
    void ready(const dtrain::ReadyGradient& gradient) override {
      dtrain::TensorView narrow = model_->list_[gradient.parameter].gradient;
      if (narrow.data == nullptr) narrow = dtrain::tensor_view(model_->gradient_memory_.data(), narrow.shape);
      std::ranges::transform(gradient.memory->as<float>(), narrow.as<Element>().begin(),
                             [](float value) { return Element(value); });
      next_(gradient.parameter, narrow);
    }

   private:
    HalfModel* model_;
    dtrain::Ready next_;
  };

  Model model_;
  std::size_t gradient_bytes_;
  std::vector<dtrain::Parameter> wide_;
  std::vector<std::vector<Element>> values_;
  std::vector<std::vector<Element>> gradients_;  // until bind_gradient or give_gradients_away
  std::vector<Element> gradient_memory_;         // of all gradients given away
  std::vector<dtrain::Parameter> list_;
};

}  // namespace gpt2
