#pragma once
/// @file
/// A block of the transformer: attention and a feed-forward network, each behind a layer normalisation.

#include <cmath>
#include <string>

#include "attention.hpp"
#include "feed_forward.hpp"
#include "layer_norm.hpp"

namespace gpt2 {

/// x += attention(norm(x)), then x += feed_forward(norm(x)).
template <class Scalar>
class Block {
 public:
  Block(const std::string& name, const ModelShape& shape)
      : attention_norm_(name + ".ln_1", shape.channels),
        attention_(name + ".attn", shape),
        feed_forward_norm_(name + ".ln_2", shape.channels),
        feed_forward_(name + ".mlp", shape) {}

  void resize(const ModelShape& shape, Index sequences) {
    attention_norm_.resize(sequences * shape.context);
    attention_.resize(sequences);
    feed_forward_norm_.resize(sequences * shape.context);
    feed_forward_.resize(shape, sequences * shape.context);
  }

  /// @param output_deviation that of the layers whose output is added to x
  void randomize(Scalar deviation, Scalar output_deviation, shared::SplitMix64& random) {
    attention_.randomize(deviation, output_deviation, random);
    feed_forward_.randomize(deviation, output_deviation, random);
  }

  void list(WeightsList<Scalar>& list) {
    attention_norm_.list(list);
    attention_.list(list);
    feed_forward_norm_.list(list);
    feed_forward_.list(list);
  }

  /// @param x [tokens, channels]: the block's input, then its output. @param added memory of x's shape
  void forward(Matrix<Scalar>& x, Matrix<Scalar>& added) {
    attention_.forward(attention_norm_.forward(x), added);
    x += added;
    feed_forward_.forward(feed_forward_norm_.forward(x), added);
    x += added;
  }

  /// @param error [tokens, channels]: of the loss by the block's output, then by its input
  void backward(Matrix<Scalar>& error, Errors<Scalar>& errors, dtrain::Ready ready) {
    feed_forward_.backward(feed_forward_norm_.output(), error, errors, errors.normalized, ready);
    feed_forward_norm_.backward(errors.normalized, error, ready);
    attention_.backward(attention_norm_.output(), error, errors, errors.normalized, ready);
    attention_norm_.backward(errors.normalized, error, ready);
  }

 private:
  LayerNorm<Scalar> attention_norm_;
  Attention<Scalar> attention_;
  LayerNorm<Scalar> feed_forward_norm_;
  FeedForward<Scalar> feed_forward_;
};

}  // namespace gpt2
