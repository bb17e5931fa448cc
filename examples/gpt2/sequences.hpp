#pragma once
/// @file
/// A text in sequences of one length, which are what the sampler shuffles.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/ddp/data/sample_steps.hpp"
#include "dtrain/ddp/ready.hpp"
#include "model.hpp"
#include "text.hpp"

namespace gpt2 {

/// Sequence i begins at byte i * context. Its targets are its bytes from the second one on, and the one behind it.
class Sequences {
 public:
  /// @param batch sequences of all ranks in one step. A rest of the text that fills no batch is left out, so that all
  /// steps have as many.
  /// @throws dtrain::Error in one sentence if the text is too short for one batch.
  Sequences(std::vector<std::uint8_t> text, std::size_t context, std::size_t batch)
      : text_(std::move(text)), context_(context) {
    if (text_.size() < batch * context + 1) {
      detail::refuse_text("the text has " + std::to_string(text_.size()) + " bytes, but a batch of " +
                          std::to_string(batch) + " sequences needs " + std::to_string(batch * context + 1));
    }
    count_ = (text_.size() - 1) / context / batch * batch;
  }

  std::size_t count() const noexcept { return count_; }
  std::size_t text_bytes() const noexcept { return text_.size(); }

  /// Makes `batch` the sequences at `indices`, each below count().
  void gather(std::span<const std::size_t> indices, Batch& batch) const {
    batch.inputs.resize(indices.size() * context_);
    batch.targets.resize(batch.inputs.size());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::uint8_t* const bytes = text_.data() + indices[i] * context_;
      std::copy_n(bytes, context_, batch.inputs.data() + i * context_);
      std::copy_n(bytes + 1, context_, batch.targets.data() + i * context_);
    }
  }

 private:
  std::vector<std::uint8_t> text_;
  std::size_t context_;
  std::size_t count_ = 0;
};

/// The pass of a step over micro-batches. Lifetime: all outlive it.
template <class Model>
auto micro_batch_pass(Model& model, const Sequences& sequences, Batch& batch) {
  return [&](const dtrain::MicroBatch& part, dtrain::Ready ready) {
    sequences.gather(part.samples, batch);
    const double loss = model.forward(batch);
    model.backward(batch, ready);
    return loss;
  };
}

}  // namespace gpt2
