#pragma once
/// @file
/// A transformer of GPT-2's shape (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) whose
/// tokens are bytes.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "block.hpp"

namespace gpt2 {

/// Sequences of context tokens, one after the other, and behind each token the one to predict.
struct Batch {
  std::vector<std::uint8_t> inputs;
  std::vector<std::uint8_t> targets;
};

/// `Scalar` is float; a test of the gradients takes double. Threads: none but the one that uses it.
/// Memory: all is allocated by the constructor, and that of activations again by a forward() of another number of
/// sequences.
template <class Scalar>
class BasicModel {
 public:
  /// @param sequences of the first batch. Initial weights are GPT-2's, but for the distribution: uniform with a
  /// standard deviation of 0.02, divided by sqrt(2 layers) where a layer's output is added to the stream; biases zero,
  /// gains one. The same seed gives the same bits everywhere.
  BasicModel(const ModelShape& shape, Index sequences, std::uint64_t seed)
      : shape_(shape),
        tokens_("wte.weight", vocabulary, shape.channels),
        positions_("wpe.weight", shape.context, shape.channels),
        norm_("ln_f", shape.channels),
        errors_(shape) {
    shared::SplitMix64 random(seed);
    constexpr auto deviation = Scalar(0.02);
    const Scalar output_deviation = deviation / std::sqrt(static_cast<Scalar>(2 * shape.layers));
    tokens_.randomize(deviation, random);
    positions_.randomize(deviation, random);
    weights_ = {&tokens_, &positions_};
    for (Index i = 0; i < shape.layers; ++i) {
      Block<Scalar>& block = blocks_.emplace_back("h." + std::to_string(i), shape);
      block.randomize(deviation, output_deviation, random);
      block.list(weights_);
    }
    norm_.list(weights_);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      weights_[i]->set_position(i);
    }
    resize(sequences);
  }
  BasicModel(const BasicModel&) = delete;
  BasicModel& operator=(const BasicModel&) = delete;

  /// The embeddings of tokens, [256, channels], which are the output's weights too, and of positions, [context,
  /// channels]; then the weights of each block, the first block first; then those of the last layer normalisation.
  /// Names and shapes are those of transformers' GPT2Model.
  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list;
    for (Weights<Scalar>* weights : weights_) {
      list.push_back(weights->parameter());
    }
    return list;
  }

  /// Gradient `index` lives at `view` from now on. Lifetime: its memory outlives the last backward().
  void bind_gradient(std::size_t index, const dtrain::TensorView& view) { weights_.at(index)->bind_gradient(view); }

  /// From now on gradients have no memory in parameters(): each is the wrapper's once it is announced, and the next is
  /// computed in its place. That of the token embeddings has its own, because it has two parts.
  /// @returns the bytes of both memories
  std::size_t give_gradients_away() {
    std::size_t largest = 0;
    for (const Weights<Scalar>* weights : weights_) {
      if (weights != &tokens_) largest = std::max(largest, weights->elements());
    }
    gradient_memory_.resize(largest);
    for (Weights<Scalar>* weights : weights_) {
      weights->give_gradient_away(weights == &tokens_ ? nullptr : gradient_memory_.data());
    }
    return (largest + tokens_.elements()) * sizeof(Scalar);
  }

  /// @returns the mean cross-entropy of the targets. What backward() needs is kept.
  double forward(const Batch& batch) {
    const Index sequences = static_cast<Index>(batch.inputs.size()) / shape_.context;
    if (sequences != sequences_) resize(sequences);
    for (Index row = 0; row < stream_.rows(); ++row) {
      stream_.row(row) = tokens_.value().row(batch.inputs[static_cast<std::size_t>(row)]) +
                         positions_.value().row(row % shape_.context);
    }
    for (Block<Scalar>& block : blocks_) {
      block.forward(stream_, errors_.normalized);
    }
    scores_.noalias() = norm_.forward(stream_) * tokens_.value().transpose();
    return softmax_minus_target(batch.targets);
  }

  /// The gradients of the loss of `batch`, which the last forward() was given. Overwrites the gradients of before.
  /// Calls `ready(i)` as soon as gradient i is final, from the last parameter to the first, so that it travels while
  /// the layers below are still computing. That of the token embeddings has two parts and so is the last.
  /// @param weight of the loss
  void backward(const Batch& batch, dtrain::Ready ready, float weight = 1) {
    if (weight != 1) scores_ *= static_cast<Scalar>(weight);
    tokens_.gradient().noalias() = scores_.transpose() * norm_.output();
    errors_.normalized.noalias() = scores_ * tokens_.value();
    stream_.setZero();  // from here on: the loss's derivative by the stream
    norm_.backward(errors_.normalized, stream_, ready);
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      blocks_[i].backward(stream_, errors_, ready);
    }
    positions_.gradient().setZero();
    for (Index sequence = 0; sequence < sequences_; ++sequence) {
      positions_.gradient() += stream_.middleRows(sequence * shape_.context, shape_.context);
    }
    positions_.announce(ready);
    for (Index row = 0; row < stream_.rows(); ++row) {
      tokens_.gradient().row(batch.inputs[static_cast<std::size_t>(row)]) += stream_.row(row);
    }
    tokens_.announce(ready);
  }

 private:
  void resize(Index sequences) {
    sequences_ = sequences;
    const Index tokens = sequences * shape_.context;
    for (Block<Scalar>& block : blocks_) {
      block.resize(shape_, sequences);
    }
    norm_.resize(tokens);
    stream_.resize(tokens, shape_.channels);
    scores_.resize(tokens, vocabulary);
    errors_.resize(shape_, tokens);
  }

  /// Turns the scores of n tokens into the derivative of the mean cross-entropy by them, (softmax - target) / n.
  /// @returns the mean cross-entropy
  double softmax_minus_target(const std::vector<std::uint8_t>& targets) {
    const Scalar share = 1 / static_cast<Scalar>(scores_.rows());
    double loss = 0;
    for (Index row = 0; row < scores_.rows(); ++row) {
      auto values = scores_.row(row).array();
      const Index target = targets[static_cast<std::size_t>(row)];
      values -= values.maxCoeff();
      const auto target_score = static_cast<double>(values(target));
      values = values.exp();
      const Scalar sum = values.sum();
      loss += std::log(static_cast<double>(sum)) - target_score;
      values *= share / sum;
      values(target) -= share;
    }
    return loss / static_cast<double>(scores_.rows());
  }

  ModelShape shape_;
  Index sequences_ = 0;
  Weights<Scalar> tokens_;
  Weights<Scalar> positions_;
  std::deque<Block<Scalar>> blocks_;
  LayerNorm<Scalar> norm_;
  WeightsList<Scalar> weights_;
  std::vector<Scalar> gradient_memory_;  // of all gradients given away
  Matrix<Scalar> stream_;                // what the blocks add to, [sequences * context, channels]
  Matrix<Scalar> scores_;  // of every byte for each token, [sequences * context, 256]; then derivatives by them
  Errors<Scalar> errors_;
};

using Model = BasicModel<float>;

/// A model for stage 2 of ZeRO, which frees memory of gradients: it keeps none, and binds none. Lifetime: the model
/// outlives it.
template <class M>
class ModelWithoutGradients {
 public:
  explicit ModelWithoutGradients(M& model) : model_(&model), gradient_bytes_(model.give_gradients_away()) {}

  std::vector<dtrain::Parameter> parameters() { return model_->parameters(); }
  double forward(const Batch& batch) { return model_->forward(batch); }
  void backward(const Batch& batch, dtrain::Ready ready, float weight = 1) { model_->backward(batch, ready, weight); }

  /// That its backward pass computes gradients in.
  std::size_t gradient_bytes() const noexcept { return gradient_bytes_; }

 private:
  M* model_;
  std::size_t gradient_bytes_;
};

}  // namespace gpt2
