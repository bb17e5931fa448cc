#pragma once
/// @file
/// AdamW, with its state whole on every rank or divided among them.

#include <dtrain/dtrain.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace gpt2 {

/// Every rank has the whole state and updates all weights.
class WholeOptimizer {
 public:
  explicit WholeOptimizer(std::span<const dtrain::Parameter> parameters) {
    for (const dtrain::Parameter& parameter : parameters) {
      const auto elements = static_cast<std::size_t>(parameter.value.shape.element_count());
      states_.push_back({std::vector<float>(elements), std::vector<float>(elements)});
    }
  }

  dtrain::optimizers::AdamW& rule() noexcept { return rule_; }

  /// Updates the values of the parameters, which are those of the construction, by their gradients.
  void update(std::span<const dtrain::Parameter> parameters) {
    ++step_;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      rule_(parameters[i].value.as<float>(), parameters[i].gradient.as<float>(),
            {std::span(states_[i].means), std::span(states_[i].squares)}, {step_, i});
    }
  }

  std::size_t state_bytes() const noexcept {
    std::size_t bytes = 0;
    for (const State& state : states_) {
      bytes += (state.means.size() + state.squares.size()) * sizeof(float);
    }
    return bytes;
  }

 private:
  struct State {
    std::vector<float> means;
    std::vector<float> squares;
  };

  dtrain::optimizers::AdamW rule_;
  std::vector<State> states_;
  std::uint64_t step_ = 0;
};

/// One of both, chosen when the program runs. Lifetime: `ddp` and `model` outlive it.
template <class Ddp, class Model>
class Optimizer {
 public:
  /// Collective if `divided`. @param clip the most that the gradients' norm may be; 0: whatever it is
  Optimizer(Ddp& ddp, Model& model, bool divided, double clip) : ddp_(&ddp), model_(&model), clip_(clip) {
    if (divided) {
      divided_ = std::make_unique<Divided>(ddp, dtrain::optimizers::AdamW{});
    } else {
      whole_ = std::make_unique<WholeOptimizer>(model.parameters());
    }
  }

  /// A step of the training: `backward(ready)`, reduction and update. Collective, blocking.
  template <std::invocable<dtrain::Ready> F>
  void step(F&& backward, float rate) {
    if (divided_) {
      divided_->rule().rate = rate;
      if (clip_ == 0) return ddp_->backward(backward, *divided_);
      ddp_->backward(backward, *divided_, [clip = clip_](dtrain::ShardedGradients& gradients) {
        dtrain::clip_gradients(gradients, clip);
        return true;
      });
    } else {
      whole_->rule().rate = rate;
      ddp_->backward(backward, {.measure_norm = clip_ > 0});
      if (clip_ > 0) dtrain::clip_gradients(*ddp_, clip_);
      whole_->update(model_->parameters());
    }
  }

  /// Of this rank.
  std::size_t state_bytes() const noexcept { return divided_ ? divided_->state_bytes() : whole_->state_bytes(); }

 private:
  using Divided = decltype(dtrain::ShardedOptimizer{std::declval<Ddp&>(), dtrain::optimizers::AdamW{}});

  Ddp* ddp_;
  Model* model_;
  double clip_;
  std::unique_ptr<Divided> divided_;
  std::unique_ptr<WholeOptimizer> whole_;
};

}  // namespace gpt2
