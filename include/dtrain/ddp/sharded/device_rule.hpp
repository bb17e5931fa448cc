#pragma once
/// @file
/// The concept DeviceRule: how an optimizer changes weights in device memory; and the rules of dtrain::optimizers
/// there.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"
#include "dtrain/ddp/sharded/optimizers.hpp"
#include "dtrain/stream/cuda/kernels/update_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Numbers that change from update to update, in device memory, for kernels of captured steps.
/// @ingroup sharding
struct LiveUpdate {
  stream::cuda::UpdateNumbers numbers{};  ///< of the rules in dtrain::optimizers
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
  const LiveUpdate* live = nullptr;  ///< in device memory; null as long as no step was captured, or had a scaler
  std::span<const ParameterElements> parameters{};  ///< whose the elements are, in the order of the arrays
  const float* found_inf = nullptr;  ///< in device memory: 1 if the update changes nothing, else 0; null: 0
};

namespace detail {

/// The formula of a rule of dtrain::optimizers, with its numbers.
struct DeviceUpdate {
  stream::cuda::Update update;
  stream::cuda::UpdateNumbers numbers;
};

inline DeviceUpdate device_update(const optimizers::Sgd& rule, std::uint64_t) {
  return {stream::cuda::Update::sgd, {rule.rate, rule.weight_decay}};
}
inline DeviceUpdate device_update(const optimizers::Momentum& rule, std::uint64_t) {
  return {
      stream::cuda::Update::momentum,
      {rule.rate, rule.momentum, rule.weight_decay, rule.nesterov ? 1.0F : 0.0F, rule.nesterov ? rule.momentum : 1.0F}};
}
inline DeviceUpdate device_update(const optimizers::detail::AdamStep<float>& step) {
  return {stream::cuda::Update::adam,
          {step.kept, step.coupled_decay, 1 - step.beta1, step.beta2, 1 - step.beta2, step.step_size,
           step.root_of_second, step.epsilon}};
}
inline DeviceUpdate device_update(const optimizers::Adam& rule, std::uint64_t step) {
  return device_update(rule.step({step}));
}
inline DeviceUpdate device_update(const optimizers::AdamW& rule, std::uint64_t step) {
  return device_update(rule.step({step}));
}

/// A rule of dtrain::optimizers that has a kernel. One derived from it has none: its formula may differ.
template <class R>
concept HasUpdateKernel = std::same_as<R, optimizers::Sgd> || std::same_as<R, optimizers::Momentum> ||
    std::same_as<R, optimizers::Adam> || std::same_as<R, optimizers::AdamW>;

template <class R>
concept EnqueuesUpdates = requires(const R& rule, const BufferView& elements, std::span<const BufferView> states,
                                   const DeviceStepInfo& info, stream::cuda::StreamRef stream) {
  rule.enqueue(elements, elements, states, info, stream);
};

}  // namespace detail

/// A rule for weights in device memory. `rule.enqueue(weights, gradients, states, info, stream)` enqueues kernels that
/// change the elements of `weights` and of each array in `states` by `gradients`. All are f32, of one length, on the
/// stream's device. `Rule::State`, a struct of at most eight `std::span<float>` as of OptimizerRule, says how many
/// state arrays there are. All state begins as zeros. Sgd, Momentum, Adam and AdamW of dtrain::optimizers are such
/// rules, with the bits that they have on the host. A rule derived from one of them needs enqueue().
/// - Elements do not depend on each other: arrays have elements of several parameters, in parts of any length, which
/// `info.parameters` lists.
/// - A rule with kernels that the driver may refuse has `bool load_kernels(stream) const`, which launches them for no
/// elements: the optimizer is then refused on every rank.
/// - The rule waits for nothing: a step may be captured in a CUDA graph. From the first step on that is captured, or
/// has a DeviceLossScaler, kernels read the update's number from `info.live`, and `info.step` is 0.
/// - A step with a DeviceLossScaler needs a rule of dtrain::optimizers, or one with `static constexpr bool
/// reads_found_inf = true`: where `*info.found_inf` is 1, its kernels change neither weights nor states.
/// - The rule may change the gradients. Lifetime: the memory outlives the work.
/// @ingroup sharding
template <class R>
concept DeviceRule = detail::EnqueuesUpdates<R> || detail::HasUpdateKernel<R>;

/// Whether the rule changes nothing where `*info.found_inf` is 1.
template <class R>
concept ReadsFoundInf = detail::HasUpdateKernel<R> || requires {
  requires R::reads_found_inf;
};

/// Launches the rule's kernels for no elements. @returns whether the driver has loaded them
template <DeviceRule R>
bool load_rule([[maybe_unused]] const R& rule, [[maybe_unused]] stream::cuda::StreamRef stream) {
  if constexpr (detail::HasUpdateKernel<R>) {
    return stream::cuda::UpdateKernel::load(detail::device_update(rule, 1).update, stream);
  } else if constexpr (requires { rule.load_kernels(stream); }) {
    return rule.load_kernels(stream);
  } else {
    return true;
  }
}

/// Enqueues the update. Within another rule's enqueue(): @pre `info.live` is null, since it has that rule's numbers.
/// @param states as many as the rule has @throws Error (cuda), as the rule
template <DeviceRule R>
void enqueue_rule(const R& rule, const BufferView& weights, const BufferView& gradients,
                  std::span<const BufferView> states, const DeviceStepInfo& info, stream::cuda::StreamRef stream) {
  if constexpr (detail::EnqueuesUpdates<R>) {
    rule.enqueue(weights, gradients, states, info, stream);
  } else {
    const detail::DeviceUpdate update = detail::device_update(rule, info.step);
    const auto elements = [](const BufferView& view) { return reinterpret_cast<float*>(view.data); };
    std::array<float*, 4> arrays{elements(weights), elements(gradients)};
    for (std::size_t i = 0; i < states.size(); ++i) {
      arrays[2 + i] = elements(states[i]);
    }
    const float* const live = info.live != nullptr ? info.live->numbers.data() : nullptr;
    stream::cuda::UpdateKernel::find(update.update)
        .enqueue(arrays, weights.count, update.numbers, live, info.found_inf, stream);
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::DeviceStepInfo;
using ddp::LiveUpdate;
using ddp::ParameterElements;
}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_WITH_CUDA
