#pragma once
/// @file
/// Layer normalisation (Ba, Kiros and Hinton, "Layer Normalization", 2016).

#include <cmath>
#include <string>

#include "weights.hpp"

namespace gpt2 {

/// output = gain (input - mean) / sqrt(variance + 1e-5) + bias, with mean and variance of each token's elements.
template <class Scalar>
class LayerNorm {
 public:
  LayerNorm(const std::string& name, Index channels)
      : gain_(name + ".weight", channels), bias_(name + ".bias", channels), scaled_(channels) {
    gain_.value().setOnes();
  }

  void resize(Index tokens) {
    normalized_.resize(tokens, scaled_.size());
    inverse_deviations_.resize(tokens);
    output_.resize(tokens, scaled_.size());
  }

  /// gain [channels] and bias [channels].
  void list(WeightsList<Scalar>& list) {
    list.push_back(&gain_);
    list.push_back(&bias_);
  }

  /// @param input [tokens, channels]. @returns output()
  const Matrix<Scalar>& forward(const Matrix<Scalar>& input) {
    for (Index token = 0; token < input.rows(); ++token) {
      auto normalized = normalized_.row(token).array();
      normalized = input.row(token).array() - input.row(token).mean();
      const Scalar inverse = 1 / std::sqrt(normalized.square().mean() + Scalar(1e-5));
      normalized *= inverse;
      inverse_deviations_(token) = inverse;
      output_.row(token).array() = normalized * gain_.value().row(0).array() + bias_.value().row(0).array();
    }
    return output_;
  }

  /// [tokens, channels], of the last forward().
  const Matrix<Scalar>& output() const noexcept { return output_; }

  /// @param error of the loss by the output, [tokens, channels]
  /// @param input_error the loss's derivative by the input is added to it, [tokens, channels]
  void backward(const Matrix<Scalar>& error, Matrix<Scalar>& input_error, dtrain::Ready ready) {
    bias_.gradient() = error.colwise().sum();
    bias_.announce(ready);
    gain_.gradient() = error.cwiseProduct(normalized_).colwise().sum();
    gain_.announce(ready);
    for (Index token = 0; token < error.rows(); ++token) {
      const auto normalized = normalized_.row(token).array();
      scaled_ = error.row(token).array() * gain_.value().row(0).array();
      const Scalar mean = scaled_.mean();
      const Scalar slope = (scaled_ * normalized).mean();
      input_error.row(token).array() += inverse_deviations_(token) * (scaled_ - mean - slope * normalized);
    }
  }

 private:
  Weights<Scalar> gain_;
  Weights<Scalar> bias_;
  Matrix<Scalar> normalized_;
  Row<Scalar> inverse_deviations_;
  Matrix<Scalar> output_;
  Eigen::Array<Scalar, 1, Eigen::Dynamic> scaled_;  // a token's error times the gain
};

}  // namespace gpt2
