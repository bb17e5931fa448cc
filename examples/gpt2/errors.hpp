#pragma once
/// @file
/// The loss's derivatives by what is computed inside a block.

#include "model_shape.hpp"

namespace gpt2 {

/// One for a model: the backward passes of its blocks write it one after the other.
template <class Scalar>
struct Errors {
  Errors(const ModelShape& shape, Index tokens)
      : normalized(tokens, shape.width),
        mixed(tokens, shape.width),
        queries_keys_values(tokens, 3 * shape.width),
        hidden(tokens, 4 * shape.width),
        scores(shape.context, shape.context) {}

  Matrix<Scalar> normalized;           ///< by the output of a layer normalisation, [tokens, width]
  Matrix<Scalar> mixed;                ///< by the values that attention has mixed, [tokens, width]
  Matrix<Scalar> queries_keys_values;  ///< [tokens, 3 width]
  Matrix<Scalar> hidden;               ///< by the hidden layer of a feed-forward network, [tokens, 4 width]
  Matrix<Scalar> scores;               ///< by one head's scores in one sequence, [context, context]
};

}  // namespace gpt2
