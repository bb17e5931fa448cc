#pragma once
/// @file
/// A perceptron with hidden layers of exponential linear units, on Eigen: the model that the example trains.

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../shared/random.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"
#include "sgd.hpp"

namespace fashion_mnist {

template <class Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Samples, one a row, and the class of each.
template <class Scalar>
struct Batch {
  Matrix<Scalar> inputs;
  std::vector<std::uint8_t> labels;
};

/// `Scalar` is float; a test of the gradients takes double. Threads: none but the one that uses it.
template <class Scalar>
class BasicMlp {
 public:
  using Optimizer = Sgd;

  /// Layers between the `widths`: {784, 256, 128, 10} has three. Weights are uniform within sqrt(6 / inputs) of zero
  /// (He et al., "Delving Deep into Rectifiers", 2015), biases zero. The same seed gives the same bits everywhere.
  BasicMlp(std::span<const Eigen::Index> widths, std::uint64_t seed) {
    shared::SplitMix64 random(seed);
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers_.emplace_back(widths[i], widths[i + 1], random);
    }
  }
  BasicMlp(BasicMlp&&) noexcept = default;  // the heap memory that parameters() shows moves along
  BasicMlp& operator=(BasicMlp&&) noexcept = default;

  /// weight [inputs, outputs] and bias [outputs] of each layer, the first layer first: 2 k and 2 k + 1.
  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list;
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      Layer& layer = layers_[k];
      const std::string prefix = "layer" + std::to_string(k + 1) + '.';
      const dtrain::Shape weight_shape{layer.weight.rows(), layer.weight.cols()};
      const dtrain::Shape bias_shape{layer.bias.cols()};
      list.push_back({prefix + "weight", dtrain::tensor_view(layer.weight.data(), weight_shape),
                      dtrain::tensor_view(layer.weight_gradient, weight_shape)});
      list.push_back({prefix + "bias", dtrain::tensor_view(layer.bias.data(), bias_shape),
                      dtrain::tensor_view(layer.bias_gradient, bias_shape)});
    }
    return list;
  }

  /// Gradient `index` lives at `view` from now on. Lifetime: its memory outlives the last backward().
  void bind_gradient(std::size_t index, const dtrain::TensorView& view) {
    Layer& layer = layers_.at(index / 2);
    (index % 2 == 0 ? layer.weight_gradient : layer.bias_gradient) = view.as<Scalar>().data();
    (index % 2 == 0 ? layer.own_weight_gradient : layer.own_bias_gradient) = {};
  }

  /// The scores of each class for each row of `inputs`; valid until the next call. What backward() needs is kept.
  const Matrix<Scalar>& forward(const Matrix<Scalar>& inputs) {
    const Matrix<Scalar>* previous = &inputs;
    for (Layer& layer : layers_) {
      layer.output.resize(inputs.rows(), layer.weight.cols());
      layer.output.noalias() = *previous * layer.weight;
      layer.output.rowwise() += layer.bias;
      if (&layer != &layers_.back()) activate(layer.output);
      previous = &layer.output;
    }
    return *previous;
  }

  /// The gradients of the mean cross-entropy over `batch`, which the last forward() was given. Calls `ready(i)` as soon
  /// as gradient i is final, the last layer's first, so that it travels while the layers below are still computing.
  /// @param loss_scale factor of the loss, and so of the gradients
  void backward(const Batch<Scalar>& batch, dtrain::Ready ready, Scalar loss_scale = 1) {
    Matrix<Scalar>* error = &layers_.back().output;  // from here on: of a layer's output, the loss's derivative by it
    softmax_minus_target(*error, batch.labels, loss_scale);
    for (std::size_t k = layers_.size(); k-- > 0;) {
      Layer& layer = layers_[k];
      const Matrix<Scalar>& inputs = k == 0 ? batch.inputs : layers_[k - 1].output;
      Eigen::Map<Matrix<Scalar>>(layer.weight_gradient, layer.weight.rows(), layer.weight.cols()).noalias() =
          inputs.transpose() * *error;
      ready(2 * k);
      Eigen::Map<Row>(layer.bias_gradient, layer.bias.cols()) = error->colwise().sum();
      ready(2 * k + 1);
      if (k == 0) break;
      input_error_.noalias() = *error * layer.weight.transpose();
      error = &layers_[k - 1].output;
      times_slope(input_error_, *error);
    }
  }

  /// Says that gradient `index` is ready, which was not computed anew.
  void announce(std::size_t index, dtrain::Ready ready) const { ready(index); }

  /// Blocking: until what was enqueued is done. Here it is.
  void block_until_done() const noexcept {}

  Optimizer optimizer(float momentum) const { return Optimizer(momentum); }

  /// Copies the elements of a parameter's value.
  void read(const dtrain::TensorView& value, std::span<std::byte> to) const {
    std::copy_n(value.data, to.size(), to.begin());
  }

  /// The values, for a checkpoint, in memory of the host; take_saved() after it was written to.
  std::vector<dtrain::NamedTensor> saved() { return dtrain::parameter_values(parameters()); }
  void take_saved() const noexcept {}

  void add_to_first_gradient(Scalar change) { layers_.front().weight_gradient[0] += change; }

 private:
  using Row = Eigen::Matrix<Scalar, 1, Eigen::Dynamic>;

  struct Layer {
    Layer(Eigen::Index inputs, Eigen::Index outputs, shared::SplitMix64& random)
        : weight(inputs, outputs),
          bias(Row::Zero(outputs)),
          own_weight_gradient(static_cast<std::size_t>(inputs * outputs)),
          own_bias_gradient(static_cast<std::size_t>(outputs)),
          weight_gradient(own_weight_gradient.data()),
          bias_gradient(own_bias_gradient.data()) {
      const Scalar bound = std::sqrt(Scalar{6} / static_cast<Scalar>(inputs));
      std::generate(weight.data(), weight.data() + weight.size(), [&] { return bound * random.symmetric(); });
    }

    Matrix<Scalar> weight;
    Row bias;
    Matrix<Scalar> output;
    std::vector<Scalar> own_weight_gradient;  // until bind_gradient
    std::vector<Scalar> own_bias_gradient;
    Scalar* weight_gradient;
    Scalar* bias_gradient;
  };

  /// x for x > 0, else exp(x) - 1 (Clevert et al., "Fast and Accurate Deep Network Learning by Exponential Linear
  /// Units", 2016). Its slope has no step, as that of max(x, 0) has: there a last bit's difference between two orders
  /// of summation can switch a unit, and after an epoch the losses of 1 and 4 ranks differ by 1e-3 instead of 1e-8
  /// (both measured).
  static void activate(Matrix<Scalar>& values) {
    const auto x = values.array();
    values = (x > Scalar{0}).select(x, x.min(Scalar{0}).exp() - Scalar{1});
  }

  /// activated = error times the slope, which the activated value tells: 1 above zero, else 1 + value.
  static void times_slope(const Matrix<Scalar>& error, Matrix<Scalar>& activated) {
    const auto y = activated.array();
    activated = (y > Scalar{0}).select(error.array(), error.array() * (y + Scalar{1}));
  }

  /// Turns the scores of n rows into the derivative of the mean cross-entropy by them, times loss_scale:
  /// loss_scale (softmax - target) / n.
  static void softmax_minus_target(Matrix<Scalar>& scores, std::span<const std::uint8_t> labels, Scalar loss_scale) {
    const Scalar scale = loss_scale / static_cast<Scalar>(scores.rows());
    for (Eigen::Index row = 0; row < scores.rows(); ++row) {
      auto values = scores.row(row).array();
      values = (values - values.maxCoeff()).exp();
      values *= scale / values.sum();
      scores(row, labels[static_cast<std::size_t>(row)]) -= scale;
    }
  }

  std::vector<Layer> layers_;
  Matrix<Scalar> input_error_;
};

using Mlp = BasicMlp<float>;

}  // namespace fashion_mnist
