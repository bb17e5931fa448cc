#pragma once
/// @file
/// AdamW, with its state and the gradients whole on every rank or divided among them.

#include <dtrain/dtrain.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
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

/// Bytes on one rank.
struct StateBytes {
  std::size_t optimizer = 0;
  std::size_t gradients = 0;  ///< that dtrain keeps
};

/// AdamW with everything whole, or a stage of ZeRO, chosen when the program runs. Lifetime: `ddp` and `model` outlive
/// it.
template <class Ddp, class Model>
class Optimizer {
 public:
  /// Collective with a stage. @param stage of ZeRO; 0: none
  /// @param clip the most that the gradients' norm may be; 0: whatever it is
  Optimizer(Ddp& ddp, Model& model, int stage, double clip)
      : ddp_(&ddp), model_(&model), clip_(clip), chosen_(chosen(ddp, model, stage)) {}

  /// A step of the training: `backward(ready)`, reduction and update. Collective, blocking.
  template <std::invocable<dtrain::Ready> F>
  void step(F&& backward, float rate) {
    std::visit(
        [&](auto& optimizer) {
          optimizer.rule().rate = rate;
          run_step(backward, optimizer);
        },
        chosen_);
  }

  StateBytes state() const noexcept {
    return std::visit(
        [this](const auto& optimizer) -> StateBytes {
          if constexpr (requires { optimizer.gradient_bytes(); }) {
            return {optimizer.state_bytes(), optimizer.gradient_bytes()};
          } else {
            return {optimizer.state_bytes(), ddp_->plan().arena_bytes};
          }
        },
        chosen_);
  }

 private:
  template <class Stage>
  using Divided = decltype(dtrain::ShardedOptimizer{std::declval<Ddp&>(), dtrain::optimizers::AdamW{},
                                                    std::declval<Stage>()});
  using Chosen = std::variant<WholeOptimizer, Divided<dtrain::zero::States>, Divided<dtrain::zero::Gradients>>;

  static Chosen chosen(Ddp& ddp, Model& model, int stage) {
    if (stage == 2) return dtrain::ShardedOptimizer{ddp, dtrain::optimizers::AdamW{}, dtrain::zero::Gradients{}};
    if (stage == 1) return dtrain::ShardedOptimizer{ddp, dtrain::optimizers::AdamW{}};
    return WholeOptimizer(model.parameters());
  }

  template <class F>
  void run_step(F& backward, WholeOptimizer& optimizer) {
    ddp_->backward(backward, {.measure_norm = clip_ > 0});
    if (clip_ > 0) dtrain::clip_gradients(*ddp_, clip_);
    optimizer.update(model_->parameters());
  }

  template <class F, class Sharded>
  void run_step(F& backward, Sharded& optimizer) {
    if (clip_ == 0) return ddp_->backward(backward, optimizer);
    ddp_->backward(backward, optimizer, [clip = clip_](dtrain::ShardedGradients& gradients) {
      dtrain::clip_gradients(gradients, clip);
      return true;
    });
  }

  Ddp* ddp_;
  Model* model_;
  double clip_;
  Chosen chosen_;
};

}  // namespace gpt2
