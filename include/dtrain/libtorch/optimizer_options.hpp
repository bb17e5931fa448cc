#pragma once
/// @file
/// The options of LibTorch's optimizers as rules of dtrain's.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

[[noreturn]] inline void refuse_option(const std::string& optimizer, const std::string& option) {
  throw Error(Errc::unsupported, "libtorch::ShardedOptimizer has no " + option + ", which the options of this " +
                                     optimizer + " ask for; leave it out, or use " + optimizer + " without sharding");
}

/// The rule of an optimizer class of LibTorch's, and `of(options)`, which reads one group of parameters.
template <class Optimizer>
struct RuleOf;

template <class Rule, class Options>
Rule adam_rule(const std::string& optimizer, const Options& options) {
  if (options.amsgrad()) refuse_option(optimizer, "amsgrad");
  const auto [beta1, beta2] = options.betas();
  return {static_cast<float>(options.lr()), static_cast<float>(beta1), static_cast<float>(beta2),
          static_cast<float>(options.eps()), static_cast<float>(options.weight_decay())};
}

template <>
struct RuleOf<torch::optim::AdamW> {
  using type = optimizers::AdamW;
  static type of(const torch::optim::OptimizerOptions& options) {
    return adam_rule<type>("torch::optim::AdamW", static_cast<const torch::optim::AdamWOptions&>(options));
  }
};

template <>
struct RuleOf<torch::optim::Adam> {
  using type = optimizers::Adam;
  static type of(const torch::optim::OptimizerOptions& options) {
    return adam_rule<type>("torch::optim::Adam", static_cast<const torch::optim::AdamOptions&>(options));
  }
};

template <>
struct RuleOf<torch::optim::SGD> {
  using type = optimizers::Momentum;
  static type of(const torch::optim::OptimizerOptions& given) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(given);
    if (options.dampening() != 0) refuse_option("torch::optim::SGD", "dampening");
    return {static_cast<float>(options.lr()), static_cast<float>(options.momentum()),
            static_cast<float>(options.weight_decay()), options.nesterov()};
  }
};

}  // namespace detail

/// What an update does with a parameter.
struct ParameterUpdates {
  static constexpr std::size_t no_group = std::numeric_limits<std::size_t>::max();

  std::size_t group = no_group;  ///< of the optimizer's groups
  std::int64_t count = 0;        ///< updates so far
  bool has_gradient = true;      ///< in this step, on some rank

  bool is_updated() const noexcept { return group != no_group && has_gradient; }
};

/// A rule for each group of parameters, and each parameter's own number of updates, as LibTorch's optimizers have them.
template <class Rule>
struct GroupedRule {
  using State = typename Rule::State;
  void operator()(std::span<float> weights, std::span<const float> gradients, State state, const StepInfo& info) const {
    const ParameterUpdates& parameter = parameters[info.parameter];
    if (!parameter.is_updated()) return;
    rules[parameter.group](weights, gradients, state,
                           StepInfo{static_cast<std::uint64_t>(parameter.count) + 1, info.parameter});
  }

  std::vector<Rule> rules;  ///< by group
  std::vector<ParameterUpdates> parameters;
};

}  // namespace DTRAIN_NAMESPACE::libtorch
