#pragma once
/// @file
/// Gaussian error linear units (Hendrycks and Gimpel 2016), in the form with tanh that GPT-2 has.

#include <cmath>
#include <numbers>

#include "matrix.hpp"

namespace gpt2 {

namespace detail {

template <class Scalar>
inline const Scalar gelu_scale = std::sqrt(2 / std::numbers::pi_v<Scalar>);
template <class Scalar>
inline constexpr Scalar gelu_cubic = Scalar(0.044715);

}  // namespace detail

/// output = input / 2 (1 + tanh(sqrt(2 / pi) (input + 0.044715 input^3))), both of the same shape.
template <class Scalar>
void gelu(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
  const auto x = input.array();
  output = x * ((detail::gelu_scale<Scalar> * (x + detail::gelu_cubic<Scalar> * x.cube())).tanh() + 1) / 2;
}

/// Multiplies `error`, of the loss by the output, by the slope at `input`, which gives that by the input.
template <class Scalar>
void times_gelu_slope(const Matrix<Scalar>& input, Matrix<Scalar>& error) {
  Matrix<Scalar> memory(1, input.cols());
  auto tanh = memory.row(0).array();
  for (Index row = 0; row < input.rows(); ++row) {
    const auto x = input.row(row).array();
    tanh = (detail::gelu_scale<Scalar> * (x + detail::gelu_cubic<Scalar> * x.cube())).tanh();
    error.row(row).array() *= (1 + tanh) / 2 + x / 2 * (1 - tanh.square()) * detail::gelu_scale<Scalar> *
                                                   (1 + 3 * detail::gelu_cubic<Scalar> * x.square());
  }
}

}  // namespace gpt2
