#pragma once
/// @file
/// GroupedRule: an optimizer's rule for each LibTorch parameter group, with a count of updates for each parameter.

#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace DTRAIN_NAMESPACE::libtorch {

/// State of one parameter's updates.
struct ParameterUpdates {
  static constexpr std::size_t no_group = std::numeric_limits<std::size_t>::max();

  std::size_t group = no_group;  ///< index into the optimizer's groups
  std::int64_t count = 0;        ///< number of updates
  bool has_gradient = true;      ///< whether some rank has one in this step

  bool is_updated() const noexcept { return group != no_group && has_gradient; }
  /// Number of the next update, from 1.
  std::uint64_t next() const noexcept { return static_cast<std::uint64_t>(count) + 1; }
};

/// Updates a parameter by the rule of its group, as its update `count + 1`, or leaves it as it is.
template <class Rule>
struct GroupedRule {
  using ParameterRule = Rule;  ///< @see update_numbers
  using State = typename Rule::State;
  using Element = ddp::RuleElement<Rule>;

  void operator()(std::span<Element> weights, std::span<const Element> gradients, State state,
                  const StepInfo& info) const {
    const ParameterUpdates& parameter = (*parameters)[info.parameter];
    if (!parameter.is_updated()) return;
    rules[parameter.group](weights, gradients, state, StepInfo{parameter.next(), info.parameter});
  }

  std::vector<Rule> rules;  ///< rules by group
  std::shared_ptr<const std::vector<ParameterUpdates>> parameters;
};

#if DTRAIN_WITH_CUDA

/// Makes a GroupedRule a ddp::DeviceRule: a bucket's parameters whose updates have equal numbers are one launch.
/// @param step 0 if a step was captured @returns null for a parameter that keeps its value
/// @throws Error (unsupported) if a step was captured in a CUDA graph: its replays would not count the updates of each
/// parameter
template <ddp::detail::HasUpdateKernel Rule>
std::optional<stream::cuda::UpdateNumbers> update_numbers(const GroupedRule<Rule>& rule, std::size_t parameter,
                                                          std::uint64_t step) {
  if (step == 0) {
    throw Error(Errc::unsupported,
                "a step of an optimizer with groups of parameters was captured in a CUDA graph, whose replays would "
                "not count each parameter's updates; run it without a graph");
  }
  const ParameterUpdates& updates = (*rule.parameters)[parameter];
  if (!updates.is_updated()) return std::nullopt;
  return ddp::detail::update_numbers(rule.rules[updates.group], updates.next());
}

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::libtorch
