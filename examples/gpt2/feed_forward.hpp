#pragma once
/// @file
/// The feed-forward network of a block: a hidden layer of four times the width, GELU, and back.

#include <string>

#include "errors.hpp"
#include "gelu.hpp"
#include "linear.hpp"
#include "model_shape.hpp"

namespace gpt2 {

/// Memory: allocated by the constructor.
template <class Scalar>
class FeedForward {
 public:
  FeedForward(const std::string& name, const ModelShape& shape, Index tokens)
      : input_layer_(name + ".input", shape.width, 4 * shape.width),
        output_layer_(name + ".output", 4 * shape.width, shape.width),
        hidden_(tokens, 4 * shape.width),
        activated_(tokens, 4 * shape.width) {}

  void randomize(Scalar deviation, Scalar output_deviation, fashion_mnist::SplitMix64& random) {
    input_layer_.randomize(deviation, random);
    output_layer_.randomize(output_deviation, random);
  }

  /// The layers [width, 4 width] and [4 width, width], each with its bias.
  void list(WeightsList<Scalar>& list) {
    input_layer_.list(list);
    output_layer_.list(list);
  }

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
  Linear<Scalar> input_layer_;
  Linear<Scalar> output_layer_;
  Matrix<Scalar> hidden_;
  Matrix<Scalar> activated_;
};

}  // namespace gpt2
