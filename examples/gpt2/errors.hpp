#pragma once
/// @file
/// The loss's derivatives by what is computed inside a block.

#include "model_shape.hpp"

namespace gpt2 {

/// One for a model: the backward passes of its blocks write it one after the other.
template <class Scalar>
struct Errors {
  Errors(const ModelShape& shape, Index tokens)
      : normalized(tokens, shape.channels),
        mixed(tokens, shape.channels),
        queries_keys_values(tokens, 3 * shape.channels),
        hidden(tokens, 4 * shape.channels),
        scores(shape.context, shape.context) {}

  Matrix<Scalar> normalized;           ///< by the output of a layer normalisation, [tokens, channels]
  Matrix<Scalar> mixed;                ///< by the values that attention has mixed, [tokens, channels]
  Matrix<Scalar> queries_keys_values;  ///< [tokens, 3 channels]
  Matrix<Scalar> hidden;               ///< by the hidden layer of a feed-forward network, [tokens, 4 channels]
  Matrix<Scalar> scores;               ///< by one head's scores in one sequence, [context, context]
};

}  // namespace gpt2
