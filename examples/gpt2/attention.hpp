#pragma once
/// @file
/// Causal self-attention with several heads (Vaswani et al., "Attention Is All You Need", 2017).

#include <cmath>
#include <string>

#include "branch.hpp"
#include "errors.hpp"
#include "model_shape.hpp"

namespace gpt2 {

/// Each token's query is compared with the keys of its sequence's tokens up to itself; their values are mixed in the
/// proportion of the softmax of these scores. The input layer makes queries, keys and values, each `channels` columns.
/// Memory: the weights'; resize() allocates that of the activations.
template <class Scalar>
class Attention : public Branch<Scalar> {
 public:
  Attention(const std::string& name, const ModelShape& shape)
      : Branch<Scalar>(name, "c_attn", shape.channels, 3 * shape.channels, shape.channels), shape_(shape) {}

  void resize(Index sequences) {
    sequences_ = sequences;
    queries_keys_values_.resize(sequences * shape_.context, 3 * shape_.channels);
    probabilities_.resize(sequences * shape_.heads * shape_.context, shape_.context);
    mixed_.resize(sequences * shape_.context, shape_.channels);
  }

  /// @param input [tokens, channels]. @param output [tokens, channels]
  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
    input_layer_.forward(input, queries_keys_values_);
    for (Index sequence = 0; sequence < sequences_; ++sequence) {
      for (Index head = 0; head < shape_.heads; ++head) {
        auto probabilities = probabilities_of(sequence, head);
        probabilities.noalias() = part(queries_keys_values_, queries, sequence, head) *
                                  part(queries_keys_values_, keys, sequence, head).transpose();
        for (Index token = 0; token < shape_.context; ++token) {
          auto seen = probabilities.row(token).head(token + 1).array();
          seen = ((seen - seen.maxCoeff()) * scale()).exp();
          seen /= seen.sum();
          probabilities.row(token).tail(shape_.context - 1 - token).setZero();
        }
        part(mixed_, 0, sequence, head).noalias() = probabilities * part(queries_keys_values_, values, sequence, head);
      }
    }
    output_layer_.forward(mixed_, output);
  }

  /// @param input of the last forward(). @param error of the loss by the output, [tokens, channels]
  /// @param input_error gets the loss's derivative by the input, [tokens, channels]
  void backward(const Matrix<Scalar>& input, const Matrix<Scalar>& error, Errors<Scalar>& errors,
                Matrix<Scalar>& input_error, dtrain::Ready ready) {
    output_layer_.backward(mixed_, error, errors.mixed, ready);
    Matrix<Scalar>& all = errors.queries_keys_values;
    for (Index sequence = 0; sequence < sequences_; ++sequence) {
      for (Index head = 0; head < shape_.heads; ++head) {
        const auto probabilities = probabilities_of(sequence, head);
        const auto mixed_error = part(errors.mixed, 0, sequence, head);
        part(all, values, sequence, head).noalias() = probabilities.transpose() * mixed_error;
        errors.scores.noalias() = mixed_error * part(queries_keys_values_, values, sequence, head).transpose();
        for (Index token = 0; token < shape_.context; ++token) {  // of the probabilities, from here on of the scores
          auto score_error = errors.scores.row(token).array();
          const auto probability = probabilities.row(token).array();
          const Scalar mean = (score_error * probability).sum();
          score_error = probability * (score_error - mean) * scale();
        }
        part(all, queries, sequence, head).noalias() = errors.scores * part(queries_keys_values_, keys, sequence, head);
        part(all, keys, sequence, head).noalias() =
            errors.scores.transpose() * part(queries_keys_values_, queries, sequence, head);
      }
    }
    input_layer_.backward(input, all, input_error, ready);
  }

 private:
  using Branch<Scalar>::input_layer_;
  using Branch<Scalar>::output_layer_;

  static constexpr Index queries = 0;
  static constexpr Index keys = 1;
  static constexpr Index values = 2;

  Scalar scale() const { return 1 / std::sqrt(static_cast<Scalar>(shape_.head_channels())); }

  /// One head of one sequence, [context, head channels], in the `group`-th `channels` columns of the matrix.
  auto part(Matrix<Scalar>& matrix, Index group, Index sequence, Index head) const {
    return matrix.block(sequence * shape_.context, group * shape_.channels + head * shape_.head_channels(),
                        shape_.context, shape_.head_channels());
  }

  /// [context, context]: a row for each token, zero for those after it.
  auto probabilities_of(Index sequence, Index head) {
    return probabilities_.middleRows((sequence * shape_.heads + head) * shape_.context, shape_.context);
  }

  ModelShape shape_;
  Index sequences_ = 0;
  Matrix<Scalar> queries_keys_values_;
  Matrix<Scalar> probabilities_;
  Matrix<Scalar> mixed_;
};

}  // namespace gpt2
