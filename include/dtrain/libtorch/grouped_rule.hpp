#pragma once
/// @file
/// GroupedRule: an optimizer's rule for each group of parameters, with a number of updates for each parameter, in host
/// memory and on a GPU. libtorch::ShardedOptimizer makes one of a LibTorch optimizer.

#include <dtrain/dtrain.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace DTRAIN_NAMESPACE::libtorch {

/// State of one parameter's updates.
struct ParameterUpdates {
  static constexpr std::size_t no_group = std::numeric_limits<std::size_t>::max();

  std::size_t group = no_group;  ///< index into the optimizer's groups
  std::int64_t count = 0;        ///< number of updates
  bool has_gradient = true;      ///< in this step, on some rank

  bool is_updated() const noexcept { return group != no_group && has_gradient; }
  /// Number of the next update, from 1.
  std::uint64_t next() const noexcept { return static_cast<std::uint64_t>(count) + 1; }
  bool is_updated_as(const ParameterUpdates& other) const noexcept {
    return group == other.group && count == other.count && is_updated() == other.is_updated();
  }
};

namespace detail {

// The functions exist where there is CUDA, and for rules that have a kernel.
template <class G, class Info, class Stream>
concept EnqueuesGroups = requires(const G& rule, const BufferView& elements, std::span<const BufferView> states,
                                  const Info& info, Stream stream) {
  enqueue_groups(rule, elements, elements, states, info, stream);
};
template <class G, class Stream>
concept LoadsGroupKernels = requires(const G& rule, Stream stream) {
  load_group_kernels(rule, stream);
};

}  // namespace detail

/// Updates a parameter by the rule of its group, as its update `count + 1`, or leaves it as it is.
template <class Rule>
struct GroupedRule {
  using State = typename Rule::State;
  using Element = ddp::RuleElement<Rule>;

  void operator()(std::span<Element> weights, std::span<const Element> gradients, State state,
                  const StepInfo& info) const {
    const ParameterUpdates& parameter = (*parameters)[info.parameter];
    if (!parameter.is_updated()) return;
    rules[parameter.group](weights, gradients, state, StepInfo{parameter.next(), info.parameter});
  }

  /// As a ddp::DeviceRule, if `Rule` is one. @see enqueue_groups
  template <class Info, class Stream>
  requires detail::EnqueuesGroups<GroupedRule, Info, Stream>
  void enqueue(const BufferView& weights, const BufferView& gradients, std::span<const BufferView> states,
               const Info& info, Stream stream) const {
    enqueue_groups(*this, weights, gradients, states, info, stream);
  }
  template <class Stream>
  requires detail::LoadsGroupKernels<GroupedRule, Stream>
  bool load_kernels(Stream stream) const { return load_group_kernels(*this, stream); }

  std::vector<Rule> rules;  ///< by group
  std::shared_ptr<const std::vector<ParameterUpdates>> parameters;
};

#if DTRAIN_WITH_CUDA

/// Enqueues the updates of a bucket's elements. Neighbours of one group and number of updates are one launch.
/// @throws Error (unsupported) if a step was captured in a CUDA graph: its replays would not count the updates of each
/// parameter; (cuda)
template <ddp::DeviceRule Rule>
void enqueue_groups(const GroupedRule<Rule>& rule, const BufferView& weights, const BufferView& gradients,
                    std::span<const BufferView> states, const DeviceStepInfo& info, stream::cuda::StreamRef stream) {
  if (info.live != nullptr) {
    throw Error(Errc::unsupported,
                "a step of an optimizer with groups of parameters was captured in a CUDA graph, whose replays would "
                "not count each parameter's updates; run it without a graph");
  }
  std::size_t first = 0;
  for (std::size_t i = 0, end = 0; i < info.parameters.size(); i = end) {
    const ParameterUpdates& parameter = (*rule.parameters)[info.parameters[i].parameter];
    std::size_t count = 0;
    for (end = i; end < info.parameters.size(); ++end) {
      if (!parameter.is_updated_as((*rule.parameters)[info.parameters[end].parameter])) break;
      count += info.parameters[end].count;
    }
    if (parameter.is_updated()) {
      const auto part = [&](const BufferView& all) {
        return BufferView{all.data + first * size_bytes(all.dtype), count, all.dtype, all.device};
      };
      std::array<BufferView, 8> parts{};
      for (std::size_t k = 0; k < states.size(); ++k)
        parts[k] = part(states[k]);
      ddp::enqueue_rule(rule.rules[parameter.group], part(weights), part(gradients), {parts.data(), states.size()},
                        DeviceStepInfo{parameter.next(), nullptr, info.parameters.subspan(i, end - i)}, stream);
    }
    first += count;
  }
}

/// @returns whether the driver has loaded the kernels of the groups' rules, which are of one type
template <ddp::DeviceRule Rule>
bool load_group_kernels(const GroupedRule<Rule>& rule, stream::cuda::StreamRef stream) {
  return ddp::load_rule(rule.rules.empty() ? Rule{} : rule.rules[0], stream);
}

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::libtorch
