#pragma once
/// @file
/// Types of Eigen that the layers compute with.

#include <Eigen/Core>

namespace gpt2 {

using Eigen::Index;

/// Of activations, one row for each token: the sequences of a batch one after the other.
template <class Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class Scalar>
using Row = Eigen::Matrix<Scalar, 1, Eigen::Dynamic>;

}  // namespace gpt2
