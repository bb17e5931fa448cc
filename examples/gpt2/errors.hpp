#pragma once
/// @file
/// The loss's derivatives by what is computed inside a block.

#include "model_shape.hpp"

namespace gpt2 {

/// One for a model: the backward passes of its blocks write it one after the other. Memory: scores; resize() allocates
/// the rest.
template <class Scalar>
struct Errors {
  explicit Errors(const ModelShape& shape) : scores(shape.context, shape.context) {}

  void resize(const ModelShape& shape, Index tokens) {
    normalized.resize(tokens, shape.channels);
    mixed.resize(tokens, shape.channels);
    queries_keys_values.resize(tokens, 3 * shape.channels);
    hidden.resize(tokens, 4 * shape.channels);
  }

  Matrix<Scalar> normalized;           ///< by the output of a layer normalisation, [tokens, channels]
  Matrix<Scalar> mixed;                ///< by the values that attention has mixed, [tokens, channels]
  Matrix<Scalar> queries_keys_values;  ///< [tokens, 3 channels]
  Matrix<Scalar> hidden;               ///< by the hidden layer of a feed-forward network, [tokens, 4 channels]
  Matrix<Scalar> scores;               ///< by one head's scores in one sequence, [context, context]
};

}  // namespace gpt2
