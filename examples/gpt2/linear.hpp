#pragma once
/// @file
/// A linear layer: a matrix product and a bias.

#include <string>

#include "weights.hpp"

namespace gpt2 {

template <class Scalar>
class Linear {
 public:
  Linear(const std::string& name, Index inputs, Index outputs)
      : weight_(name + ".weight", inputs, outputs), bias_(name + ".bias", outputs) {}

  void randomize(Scalar deviation, shared::SplitMix64& random) { weight_.randomize(deviation, random); }

  /// weight [inputs, outputs] and bias [outputs].
  void list(WeightsList<Scalar>& list) {
    list.push_back(&weight_);
    list.push_back(&bias_);
  }

  /// @param input [tokens, inputs]. @param output [tokens, outputs]
  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) const {
    output.noalias() = input * weight_.value();
    output.rowwise() += bias_.value().row(0);
  }

  /// @param input of the last forward(). @param error of the loss by the output, [tokens, outputs]
  /// @param input_error gets the loss's derivative by the input, [tokens, inputs]
  void backward(const Matrix<Scalar>& input, const Matrix<Scalar>& error, Matrix<Scalar>& input_error,
                dtrain::Ready ready) {
    bias_.gradient() = error.colwise().sum();
    bias_.announce(ready);
    weight_.gradient().noalias() = input.transpose() * error;
    weight_.announce(ready);
    input_error.noalias() = error * weight_.value().transpose();
  }

 private:
  Weights<Scalar> weight_;
  Weights<Scalar> bias_;
};

}  // namespace gpt2
