#pragma once
/// @file
/// The feed-forward network of a block: a hidden layer of four times the width, GELU, and back.

#include <string>

#include "branch.hpp"
#include "errors.hpp"
#include "gelu.hpp"
#include "model_shape.hpp"

namespace gpt2 {

/// Memory: allocated by the constructor.
template <class Scalar>
class FeedForward : public Branch<Scalar> {
 public:
  FeedForward(const std::string& name, const ModelShape& shape, Index tokens)
      : Branch<Scalar>(name, shape.width, 4 * shape.width, 4 * shape.width),
        hidden_(tokens, 4 * shape.width),
        activated_(tokens, 4 * shape.width) {}

  /// @param input [tokens, width]. @param output [tokens, width]
  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
    input_layer_.forward(input, hidden_);
    gelu(hidden_, activated_);
    output_layer_.forward(activated_, output);
  }

  /// @param input of the last forward(). @param error of the loss by the output, [tokens, width]
  /// @param input_error gets the loss's derivative by the input, [tokens, width]
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
