// The rules of optimizers, beside values that other programs have computed.

#include "dtrain/ddp/sharded/optimizers.hpp"
#include "unit/public_interface/prelude.hpp"
#include "unit/public_interface/sharded/optimizer_values.hpp"

namespace optimizers_test {

using Weights = std::array<float, optimizer_values::elements>;

/// A step of the rule, for a parameter as a whole.
template <class Rule>
class Stepper {
 public:
  explicit Stepper(const Rule& rule) : rule_(rule) {}

  void operator()(Weights& weights, const Weights& gradients) {
    dtrain::StepInfo info{++step_, 0, {}};
    if constexpr (std::is_same_v<Rule, optimizers::Sgd>) {
      rule_(weights, gradients, info);
    } else if constexpr (std::is_same_v<Rule, optimizers::Momentum> || std::is_same_v<Rule, optimizers::Adagrad>) {
      rule_(weights, gradients, {std::span(first_)}, info);
    } else {
      const typename Rule::State state{std::span(first_), std::span(second_)};
      if constexpr (std::is_same_v<Rule, optimizers::Lamb>) {
        const auto squares = rule_.measure(weights, gradients, state, info);
        info.norms = {std::sqrt(squares.weights), std::sqrt(squares.update)};
      }
      rule_(weights, gradients, state, info);
    }
  }

 private:
  Rule rule_;
  std::uint64_t step_ = 0;
  Weights first_{};
  Weights second_{};
};

/// The largest difference from the recorded weights, in ten steps.
template <class Rule>
double largest_difference(const Rule& rule, const optimizer_values::Values& recorded) {
  Stepper<Rule> stepper(rule);
  Weights weights{};
  for (int k = 0; k < optimizer_values::elements; ++k)
    weights[static_cast<std::size_t>(k)] = optimizer_values::first_weight(k);
  double largest = 0;
  for (int step = 0; step < optimizer_values::steps; ++step) {
    Weights gradients{};
    for (int k = 0; k < optimizer_values::elements; ++k)
      gradients[static_cast<std::size_t>(k)] = optimizer_values::gradient(step + 1, k);
    stepper(weights, gradients);
    for (std::size_t k = 0; k < weights.size(); ++k) {
      const double difference = std::abs(static_cast<double>(weights[k]) - recorded[step][k]);
      largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
    }
  }
  return largest;
}

TEST_CASE("ten steps of each rule, with weight decay, end at the weights that PyTorch has, and LAMB at its paper's") {
  constexpr double rounding = 5e-7;  // of weights up to 1
  CHECK(largest_difference(optimizers::Sgd{.rate = 0.1F, .weight_decay = 0.05F}, optimizer_values::sgd) < rounding);
  CHECK(largest_difference(optimizers::Momentum{.rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.05F},
                           optimizer_values::momentum) < rounding);
  CHECK(
      largest_difference(optimizers::Momentum{.rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.05F, .nesterov = true},
                         optimizer_values::nesterov) < rounding);
  CHECK(largest_difference(
            optimizers::Adam{.rate = 0.05F, .beta1 = 0.8F, .beta2 = 0.95F, .epsilon = 0.01F, .weight_decay = 0.05F},
            optimizer_values::adam) < rounding);
  CHECK(largest_difference(optimizers::AdamW{.rate = 0.05F, .weight_decay = 0.1F}, optimizer_values::adamw) < rounding);
  CHECK(
      largest_difference(
          optimizers::RmsProp{.rate = 0.02F, .alpha = 0.9F, .epsilon = 0.01F, .weight_decay = 0.05F, .momentum = 0.8F},
          optimizer_values::rmsprop) < rounding);
  CHECK(largest_difference(
            optimizers::Adagrad{
                .rate = 0.1F, .rate_decay = 0.1F, .weight_decay = 0.05F, .initial_sum = 0.25F, .epsilon = 0.01F},
            optimizer_values::adagrad) < rounding);
  CHECK(largest_difference(optimizers::Lamb{.rate = 0.05F, .weight_decay = 0.1F}, optimizer_values::lamb) < rounding);
}

}  // namespace optimizers_test
