#pragma once
/// @file
/// The model with parameters and gradients of 16 bits, f32 master weights and, for f16, a scaled loss.

#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "mlp.hpp"
#include "sgd.hpp"

namespace fashion_mnist {

/// Mlp whose values and gradients are `Element`, dtrain::float16 or dtrain::bfloat16: what dtrain reduces has half the
/// bytes. The arithmetic of a layer stays f32, on the widened 16-bit values. Threads: none but the one that uses it.
template <class Element>
class HalfMlp {
 public:
  using Optimizer = Sgd;
  static constexpr const char* precision = std::is_same_v<Element, dtrain::float16> ? "f16" : "bf16";
  static constexpr bool scales_loss = std::is_same_v<Element, dtrain::float16>;

  HalfMlp(std::span<const Eigen::Index> widths, std::uint64_t seed) : mlp_(widths, seed) {
    for (const dtrain::Parameter& wide : mlp_.parameters()) {
      const auto size = wide.value.shape.element_count();
      Element* const value = values_.emplace_back(size).data();
      Element* const gradient = gradients_.emplace_back(size).data();
      list_.push_back(
          {wide.name, dtrain::tensor_view(value, wide.value.shape), dtrain::tensor_view(gradient, wide.value.shape)});
    }
    master_ = std::make_unique<dtrain::MasterWeights>(*this);
    for (std::size_t i = 0; i < list_.size(); ++i) {
      std::ranges::copy(mlp_.parameters()[i].value.template as<float>(),
                        master_->parameters()[i].value.template as<float>().begin());
    }
    take_saved();
  }

  const std::vector<dtrain::Parameter>& parameters() const { return list_; }
  void bind_gradient(std::size_t index, const dtrain::TensorView& view) { list_.at(index).gradient = view; }

  const Matrix<float>& forward(const Matrix<float>& inputs) { return mlp_.forward(inputs); }

  /// The gradients of the loss times loss_scale(), each rounded to 16 bits before it is said to be ready.
  void backward(const Batch<float>& batch, dtrain::Ready ready) {
    const std::vector<dtrain::Parameter> wide = mlp_.parameters();
    Narrowing narrowing(wide, list_, ready);
    mlp_.backward(batch, dtrain::Ready(narrowing), loss_scale());
  }

  /// The reduced gradients are written to the master weights, divided by loss_scale().
  dtrain::StepOptions step_options() noexcept {
    dtrain::StepOptions options{.master = master_.get()};
    if constexpr (scales_loss) options.scaler = &scaler_;
    return options;
  }

  /// The optimizer's step, on the master weights.
  void update(Optimizer& sgd, float rate) {
    sgd.step(master_->parameters(), rate);
    take_saved();
  }

  float loss_scale() const noexcept { return scales_loss ? scaler_.scale() : 1; }

  void announce(std::size_t index, dtrain::Ready ready) const { ready(index); }
  void block_until_done() const noexcept {}
  Optimizer optimizer(float momentum) const { return Optimizer(momentum); }
  void read(const dtrain::TensorView& value, std::span<std::byte> to) const {
    std::copy_n(value.data, to.size(), to.begin());
  }

  /// The master weights and the scaler's state; take_saved() rounds them to the 16-bit values.
  std::vector<dtrain::NamedTensor> saved() {
    std::vector<dtrain::NamedTensor> all = dtrain::parameter_values(master_->parameters());
    for (const dtrain::NamedTensor& state : scaler_.state()) {
      all.push_back(state);
    }
    return all;
  }
  void take_saved() {
    master_->store();
    const std::vector<dtrain::Parameter> wide = mlp_.parameters();
    for (std::size_t i = 0; i < list_.size(); ++i) {
      std::ranges::transform(list_[i].value.template as<Element>(), wide[i].value.template as<float>().begin(),
                             [](Element value) { return static_cast<float>(value); });
    }
  }

  void add_to_first_gradient(float change) {
    Element& first = list_.front().gradient.template as<Element>().front();
    first = Element(static_cast<float>(first) + change);
  }

 private:
  /// Stands between the backward pass and DDP, as Perturbation.
  class Narrowing final : public dtrain::Ready::Sink {
   public:
    Narrowing(std::span<const dtrain::Parameter> from, std::span<const dtrain::Parameter> to, dtrain::Ready next)
        : from_(from), to_(to), next_(next) {}
    void ready(const dtrain::ReadyGradient& gradient) override {
      std::ranges::transform(from_[gradient.parameter].gradient.template as<float>(),
                             to_[gradient.parameter].gradient.template as<Element>().begin(),
                             [](float value) { return Element(value); });
      next_(gradient);
    }

   private:
    std::span<const dtrain::Parameter> from_;
    std::span<const dtrain::Parameter> to_;
    dtrain::Ready next_;
  };

  Mlp mlp_;
  std::vector<std::vector<Element>> values_;
  std::vector<std::vector<Element>> gradients_;
  std::vector<dtrain::Parameter> list_;
  std::unique_ptr<dtrain::MasterWeights> master_;
  dtrain::LossScaler scaler_;
};

}  // namespace fashion_mnist
