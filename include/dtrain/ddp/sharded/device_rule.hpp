#pragma once
/// @file
/// DeviceRule: concept of how a sharded optimizer changes weights in device memory. DeviceStepInfo: its argument.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"
#include "dtrain/ddp/sharded/optimizers.hpp"
#include "dtrain/stream/cuda/kernels/update_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Numbers that change from update to update, in device memory, for kernels of captured steps.
/// @ingroup sharding
struct LiveUpdate {
  stream::cuda::UpdateNumbers numbers{};  ///< numbers of the rules in dtrain::optimizers
  std::uint64_t step = 0;                 ///< number of this update, from 1
};

/// Neighbouring elements of one parameter in the arrays of a DeviceRule.
/// @ingroup sharding
struct ParameterElements {
  std::size_t parameter = 0;  ///< index in parameters()
  std::size_t count = 0;
};

/// Arguments of a DeviceRule besides the elements.
/// @ingroup sharding
struct DeviceStepInfo {
  std::uint64_t step = 1;            ///< number of this update, from 1; 0 if `live` has it
  const LiveUpdate* live = nullptr;  ///< device memory; null as long as no step was captured, or had a scaler
  std::span<const ParameterElements> parameters{};  ///< whose the elements are, in the order of the arrays
  const float* found_inf = nullptr;                 ///< device memory: 1 if the update changes nothing, else 0; null: 0
};

namespace detail {

template <class R>
concept AdamRule = std::same_as<R, optimizers::Adam> || std::same_as<R, optimizers::AdamW>;

/// A rule of dtrain::optimizers that has a kernel. One derived from it has none: its formula may differ.
template <class R>
concept HasUpdateKernel = std::same_as<R, optimizers::Sgd> || std::same_as<R, optimizers::Momentum> || AdamRule<R>;

/// The numbers of an update in its formula. @param step number of the update, from 1
inline stream::cuda::UpdateNumbers update_numbers(const optimizers::Sgd& rule, std::uint64_t) noexcept {
  return {rule.rate, rule.weight_decay};
}
inline stream::cuda::UpdateNumbers update_numbers(const optimizers::Momentum& rule, std::uint64_t) noexcept {
  return {rule.rate, rule.momentum, rule.weight_decay, rule.nesterov ? 1.0F : 0.0F,
          rule.nesterov ? rule.momentum : 1.0F};
}
template <AdamRule R>
stream::cuda::UpdateNumbers update_numbers(const R& rule, std::uint64_t step) noexcept {
  const auto numbers = rule.step({step});
  return {numbers.kept,      numbers.coupled_decay, 1 - numbers.beta1,      numbers.beta2,
          1 - numbers.beta2, numbers.step_size,     numbers.root_of_second, numbers.epsilon};
}

template <class R>
concept EnqueuesUpdates = requires(const R& rule, const BufferView& elements, std::span<const BufferView> states,
                                   const DeviceStepInfo& info, stream::cuda::StreamRef stream) {
  rule.enqueue(elements, elements, states, info, stream);
};

/// A rule that updates each parameter by a rule `R::ParameterRule`, which has a kernel and the same State, with the
/// numbers of `update_numbers(rule, parameter, step)`: null for a parameter that keeps its value and states. The step
/// is 0 if one was captured.
template <class R>
concept HasNumbersOfParameters = !EnqueuesUpdates<R> && HasUpdateKernel<typename R::ParameterRule> &&
                                 std::same_as<typename R::State, typename R::ParameterRule::State> &&
                                 requires(const R& rule, std::size_t parameter, std::uint64_t step) {
  { update_numbers(rule, parameter, step) } -> std::same_as<std::optional<stream::cuda::UpdateNumbers>>;
};

/// A rule that is a formula of UpdateKernel, and enqueues no work.
template <class R>
concept HasFormula = HasUpdateKernel<R> || HasNumbersOfParameters<R>;

template <HasFormula R>
constexpr stream::cuda::Update update_formula() noexcept {
  if constexpr (HasNumbersOfParameters<R>) {
    return update_formula<typename R::ParameterRule>();
  } else if constexpr (std::same_as<R, optimizers::Sgd>) {
    return stream::cuda::Update::sgd;
  } else {
    return std::same_as<R, optimizers::Momentum> ? stream::cuda::Update::momentum : stream::cuda::Update::adam;
  }
}

}  // namespace detail

/// A rule for weights in device memory. `rule.enqueue(weights, gradients, states, info, stream)` enqueues kernels that
/// change the elements of `weights` and of each array in `states` by `gradients`. All are f32, of one length, on the
/// stream's device. `Rule::State`, a struct of at most eight `std::span<float>` as of OptimizerRule, says how many
/// state arrays there are. All state begins as zeros. Sgd, Momentum, Adam and AdamW of dtrain::optimizers are such
/// rules, with the bits that they have on the host. A rule derived from one of them needs enqueue().
/// - Elements do not depend on each other: arrays have elements of several parameters, in parts of any length, which
/// `info.parameters` lists.
/// - A rule with kernels that the driver may reject has `bool load_kernels(stream) const`, which launches them for no
/// elements: the optimizer is then rejected on every rank.
/// - The rule waits for nothing: a step may be captured in a CUDA graph. From the first step on that is captured, or
/// has a DeviceLossScaler, kernels read the update's number from `info.live`, and `info.step` is 0.
/// - A step with a DeviceLossScaler needs a rule of dtrain::optimizers, or one with `static constexpr bool
/// reads_found_inf = true`: where `*info.found_inf` is 1, its kernels change neither weights nor states.
/// - The rule may change the gradients. Lifetime: the memory outlives the work.
/// @ingroup sharding
template <class R>
concept DeviceRule = detail::EnqueuesUpdates<R> || detail::HasFormula<R>;

/// Whether the rule changes nothing where `*info.found_inf` is 1.
template <class R>
concept ReadsFoundInf = detail::HasUpdateKernel<R> || requires {
  requires R::reads_found_inf;
};

/// Launches the rule's kernels for no elements. @param dtype of the model; within another rule's load_kernels(): f32
/// @returns whether the driver has loaded them
template <DeviceRule R>
bool load_rule([[maybe_unused]] const R& rule, [[maybe_unused]] stream::cuda::StreamRef stream,
               [[maybe_unused]] DType dtype = DType::f32) {
  if constexpr (detail::HasFormula<R>) {
    return stream::cuda::UpdateKernel::load(detail::update_formula<R>(), dtype, stream);
  } else if constexpr (requires { rule.load_kernels(stream); }) {
    return rule.load_kernels(stream);
  } else {
    return true;
  }
}

/// Enqueues the update. Within another rule's enqueue(): @pre `info.live` is null, since it has that rule's numbers.
/// @param states as many as the rule has @throws Error (cuda), as the rule
template <DeviceRule R>
requires detail::EnqueuesUpdates<R> || detail::HasUpdateKernel<R>
void enqueue_rule(const R& rule, const BufferView& weights, const BufferView& gradients,
                  std::span<const BufferView> states, const DeviceStepInfo& info, stream::cuda::StreamRef stream) {
  if constexpr (detail::EnqueuesUpdates<R>) {
    rule.enqueue(weights, gradients, states, info, stream);
  } else {
    stream::cuda::UpdateArguments given{detail::update_numbers(rule, info.step),
                                        info.live != nullptr ? info.live->numbers.data() : nullptr, info.found_inf};
    for (std::size_t i = 0; i < states.size(); ++i) {
      given.states[i] = reinterpret_cast<float*>(states[i].data);
    }
    stream::cuda::UpdateBatch batch(detail::update_formula<R>(), DType::f32);
    batch.add({weights.data, gradients.data, weights.data}, 0, weights.count);
    batch.enqueue(given, stream);
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::DeviceStepInfo;
using ddp::LiveUpdate;
using ddp::ParameterElements;
}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_WITH_CUDA
