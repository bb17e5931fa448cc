#pragma once
/// @file
/// AdamW on every rank, with the whole state.

#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace gpt2 {

/// AdamW with GPT's beta2 (Brown et al., "Language Models are Few-Shot Learners", 2020). It can leave the weights as
/// they are, for the time of a step without it.
struct Rule {
  using State = dtrain::optimizers::AdamW::State;

  dtrain::optimizers::AdamW adamw{.beta2 = 0.95F};
  bool updates = true;

  void operator()(std::span<float> weights, std::span<const float> gradients, State state,
                  const dtrain::StepInfo& info) const {
    if (updates) adamw(weights, gradients, state, info);
  }
};

/// Every rank updates all weights. Those of a bf16 model have f32 ones here (dtrain::MasterWeights).
class WholeOptimizer {
 public:
  template <class Model>
  explicit WholeOptimizer(Model& model) {
    const std::vector<dtrain::Parameter> parameters = model.parameters();
    if (parameters.front().value.dtype != dtrain::DType::f32) masters_.emplace(model);
    for (const dtrain::Parameter& parameter : parameters) {
      const auto elements = static_cast<std::size_t>(parameter.value.shape.element_count());
      states_.push_back({std::vector<float>(elements), std::vector<float>(elements)});
    }
  }

  Rule& rule() noexcept { return rule_; }

  /// For StepOptions::master: null for an f32 model.
  dtrain::MasterWeights* master() noexcept { return masters_ ? &*masters_ : nullptr; }

  /// After a step with master().
  template <class Model>
  void update(Model& model) {
    ++steps_;
    const std::vector<dtrain::Parameter> parameters = weights(model);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      rule_(parameters[i].value.template as<float>(), parameters[i].gradient.template as<float>(),
            {std::span(states_[i].means), std::span(states_[i].squares)}, {static_cast<std::uint64_t>(steps_), i});
    }
    if (masters_) masters_->store();
  }

  /// For a checkpoint: the f32 weights, and the state. Lifetime: that of this object and the model.
  template <class Model>
  std::vector<dtrain::NamedTensor> saved(Model& model) {
    const std::vector<dtrain::Parameter> parameters = weights(model);
    std::vector<dtrain::NamedTensor> all = dtrain::parameter_values(parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      all.push_back({parameters[i].name + ".mean", dtrain::tensor_view(states_[i].means)});
      all.push_back({parameters[i].name + ".square", dtrain::tensor_view(states_[i].squares)});
    }
    all.push_back({"updates", dtrain::tensor_view(&steps_, {})});
    return all;
  }
  /// After saved() was written to.
  void take_saved() const noexcept {
    if (masters_) masters_->store();
  }

  /// After the model's values were changed.
  void take_values() noexcept {
    if (masters_) masters_->load();
  }

  /// The state becomes the average of all ranks'. Collective, blocking.
  template <class Group>
  void average_state(const Group& group) {
    for (State& state : states_) {
      group.all_reduce_without_cast(std::span(state.means), dtrain::ReduceOp::average);
      group.all_reduce_without_cast(std::span(state.squares), dtrain::ReduceOp::average);
    }
  }

  std::size_t state_bytes() const noexcept { return (masters_ ? 3 : 2) * elements() * sizeof(float); }
  /// Beside those that dtrain reduces.
  std::size_t gradient_bytes() const noexcept { return masters_ ? elements() * sizeof(float) : 0; }

 private:
  struct State {
    std::vector<float> means;
    std::vector<float> squares;
  };

  template <class Model>
  std::vector<dtrain::Parameter> weights(Model& model) const {
    return masters_ ? masters_->parameters() : model.parameters();
  }

  std::size_t elements() const noexcept {
    std::size_t count = 0;
    for (const State& state : states_) {
      count += state.means.size();
    }
    return count;
  }

  Rule rule_;
  std::vector<State> states_;
  std::optional<dtrain::MasterWeights> masters_;
  std::int64_t steps_ = 0;
};

}  // namespace gpt2
