#pragma once
/// @file
/// The feed-forward network of a block: a hidden layer of four times the channels, GELU, and back.

#include <string>

#include "branch.hpp"
#include "errors.hpp"
#include "gelu.hpp"
#include "model_shape.hpp"

namespace gpt2 {

/// Memory: as Attention.
template <class Scalar>
class FeedForward : public Branch<Scalar> {
 public:
  FeedForward(const std::string& name, const ModelShape& shape)
      : Branch<Scalar>(name, "c_fc", shape.channels, 4 * shape.channels, 4 * shape.channels) {}

  void resize(const ModelShape& shape, Index tokens) {
    hidden_.resize(tokens, 4 * shape.channels);
    activated_.resize(tokens, 4 * shape.channels);
  }

  /// @param input [tokens, channels]. @param output [tokens, channels]
  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
    input_layer_.forward(input, hidden_);
    gelu(hidden_, activated_);
    output_layer_.forward(activated_, output);
  }

  /// @param input of the last forward(). @param error of the loss by the output, [tokens, channels]
  /// @param input_error gets the loss's derivative by the input, [tokens, channels]
  void backward(const Matrix<Scalar>& input, const Matrix<Scalar>& error, Errors<Scalar>& errors,
                Matrix<Scalar>& input_error, dtrain::Ready ready) {
    output_layer_.backward(activated_, error, errors.hidden, ready);
    times_gelu_slope(hidden_, errors.hidden);
    input_layer_.backward(input, errors.hidden, input_error, ready);
  }

 private:
  using Branch<Scalar>::input_layer_;
  using Branch<Scalar>::output_layer_;

  Matrix<Scalar> hidden_;
  Matrix<Scalar> activated_;
};

}  // namespace gpt2
