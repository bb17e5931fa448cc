#pragma once
/// @file
/// hooks::Cast: reduces f32 gradients as bf16 or f16, so that half of the bytes travel. A program gives it to the
/// wrapper.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/small_floats.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/hooks/device_cast.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/hooks/hook_state.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/kernels/in_place_cast.hpp"

namespace DTRAIN_NAMESPACE::hooks {

/// Options of Cast. The same on every rank.
/// @ingroup hooks
struct CastOptions {
  /// The parameters with error feedback; none if it is not set. Example: `dtrain::hooks::every_parameter`.
  std::function<bool(const Parameter&)> error_feedback{};
};

/// CastOptions::error_feedback for all parameters.
/// @ingroup hooks
inline bool every_parameter(const Parameter&) noexcept {
  return true;
}

namespace detail {

/// @throws Error (invalid_argument) if `errors` belong to another model, (unsupported) for errors of a gradient that is
/// not in host memory
void allocate_errors(ddp::Residuals& errors, std::span<const Parameter> parameters, const CastOptions& options);
/// Adds the errors of earlier steps to the gradients, and keeps the errors of this step.
void add_errors(ddp::Residuals& errors, std::span<const ddp::BucketGradient> gradients, DType to,
                float divisor) noexcept;

}  // namespace detail

/// A GradientHook that sends f32 gradients in 16 bits.
/// `DistributedDataParallel ddp{model, group, options, hooks::Cast<dtrain::bfloat16>{}}`. Each rank
/// rounds its f32 gradients to 16 bits in place, and the backend reduces these, with the precision of its 16-bit sums
/// (DdpOptions::accumulate). Gradients of other types are reduced as they are. For averages each rank divides before it
/// rounds. Sums of gradients in range stay in range, except for the last 0.1% of f16's range. For f16, elements below
/// 6e-8 times the number of ranks become zero: scale the loss (LossScaler).
///
/// On a CUDA device the hook works for one model, and its time is not measured. The channel allocates memory for the
/// 16-bit values of the largest bucket; memory for smaller buckets of earlier plans stays.
///
/// With error feedback, `hooks::Cast<dtrain::bfloat16> cast{{.error_feedback = dtrain::hooks::every_parameter}}`, a
/// rank adds the rounding error of each gradient to the parameter's next gradient. Over many steps the rank sends the
/// sum of its gradients less one rounding. A rank keeps an f32 for each element, in host memory only. Errors restart at
/// zero after gradients that are not finite. Errors of scaled gradients (LossScaler) have the scale of their step: use
/// bf16.
/// Lifetime: with error feedback one model; a variable outlives its wrapper.
/// @ingroup hooks
template <class Half>
class Cast {
 public:
  static_assert(std::is_same_v<Half, bfloat16> || std::is_same_v<Half, float16>,
                "dtrain: hooks::Cast is for dtrain::bfloat16 or dtrain::float16");

  explicit Cast(CastOptions options = {}) : options_(std::move(options)) {}

  std::string description() const {
    return std::string(dtype == DType::bf16 ? "hooks::Cast to bf16" : "hooks::Cast to f16") +
           (options_.error_feedback ? " with error feedback" : "");
  }

  /// @throws Error (invalid_argument) for a second model, (unsupported) if a device cannot round, or keep errors
  template <class C>
  void prepare(std::span<const Parameter> parameters) {
    prepare(parameters);
    if constexpr (!ddp::RunsHostWork<typename C::Stream>) {
      if (device_) ddp::refuse_second_model("hooks::Cast on a CUDA device");
      if (!parameters.empty()) static_cast<void>(on_device<C>(parameters.front().gradient.device));
    }
  }
  /// Prepares for host memory only, for hooks that pass their calls on. Such a hook of a device calls prepare<C>() and
  /// plan().
  void prepare(std::span<const Parameter> parameters) {
    if (options_.error_feedback) detail::allocate_errors(errors_, parameters, options_);
  }

  /// Collective, blocking: allocates memory for the 16-bit values on a device. @throws as the channel's
  /// allocate_blocking
  template <class C>
  void plan(C& channel, const ddp::BucketPlan& plan, Deadline deadline) {
    if constexpr (!ddp::RunsHostWork<typename C::Stream>) {
      if (!plan.buckets.empty()) on_device<C>(plan.buckets.front().device).plan(channel, plan, deadline);
    }
  }

  template <class C>
  void reduce(const ddp::GradientBucket<C>& bucket) {
    const BufferView& all = bucket.values;
    if (options_.error_feedback) ranks_.step_is_for("hooks::Cast", bucket.channel.size());
    if (all.dtype != DType::f32) {
      bucket.channel.enqueue(backend::AllReduce{all, all, bucket.op}, bucket.stream);
      return;
    }
    const bool divides = bucket.op == ReduceOp::average;
    const auto divisor = static_cast<float>(divides ? bucket.channel.size() : 1);
    reduce_floats(bucket, divisor, divides ? ReduceOp::sum : bucket.op);
  }

  /// State for save_checkpoint and load_checkpoint. The call averages the errors over the ranks: the state becomes
  /// equal on all ranks, and no error is lost. On the same number of ranks, a training that continues from the file has
  /// the bits of the training that wrote it. Collective, blocking: every rank calls it between the same steps, once the
  /// model is wrapped, with the wrapper's group. Lifetime: the views refer to this object. @throws Error
  /// (invalid_argument) for a group of another number of ranks than the wrapper's, in the next step if no step has run;
  /// the job's first cause
  template <class Group>
  std::vector<ddp::NamedTensor> state(const Group& group) {
    if (options_.error_feedback) ranks_.state_is_for("hooks::Cast", group.world_size());
    errors_.average(group);
    std::vector<ddp::NamedTensor> tensors;
    errors_.add_to(tensors, "cast");
    return tensors;
  }

 private:
  static constexpr DType dtype = dtype_of<Half>::value;

  template <class C>
  auto& on_device(const Device& device) {
    using OnDevice = ddp::DeviceCast<typename C::Stream>;
    static_assert(
        requires { sizeof(OnDevice); }, "dtrain: hooks::Cast rounds in host memory or on a CUDA device");
    if (!device_) device_ = std::make_shared<OnDevice>("hooks::Cast", DType::f32, dtype, device);
    return *static_cast<OnDevice*>(device_.get());
  }

  template <class C>
  requires ddp::RunsHostWork<typename C::Stream>
  void reduce_floats(const ddp::GradientBucket<C>& bucket, float divisor, ReduceOp op) {
    const BufferView& all = bucket.values;
    const BufferView halves{all.data, all.count, dtype, all.device};
    bucket.compress([this, gradients = bucket.gradients, all, divisor]() noexcept {
      if (!errors_.is_empty()) detail::add_errors(errors_, gradients, dtype, divisor);
      kernels::narrow_in_place(all.data, all.count, dtype, 1.0F / divisor);
    });
    bucket.channel.enqueue(backend::AllReduce{halves, halves, op}, bucket.stream);
    bucket.compress([all]() noexcept { kernels::widen_in_place(all.data, all.count, dtype); });
  }

  template <class C>
  void reduce_floats(const ddp::GradientBucket<C>& bucket, float divisor, ReduceOp op) {
    auto& cast = on_device<C>(bucket.values.device);
    const BufferView halves = cast.convert(bucket.values, 1.0F / divisor, bucket.stream);
    bucket.channel.enqueue(backend::AllReduce{halves, halves, op}, bucket.stream);
    cast.convert_back(halves, bucket.values, bucket.stream);
  }

  CastOptions options_;
  ddp::Residuals errors_;
  ddp::HookRanks ranks_;
  std::shared_ptr<void> device_;  ///< a DeviceCast, for a communicator that runs no work of the host
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void detail::allocate_errors(ddp::Residuals& errors, std::span<const Parameter> parameters,
                                            const CastOptions& options) {
  if (!errors.is_empty()) ddp::refuse_second_model("hooks::Cast with error feedback");
  std::vector<std::size_t> kept;
  for (const Parameter& parameter : parameters) {
    const TensorView& gradient = parameter.gradient;
    const bool keeps = gradient.dtype == DType::f32 && options.error_feedback(parameter);
    if (keeps && gradient.device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported,
                  "CastOptions::error_feedback is for gradients in host memory, but that of {} is on {}; leave "
                  "it out",
                  {ddp::describe_parameter(kept.size(), parameter.name), to_string(gradient.device)});
    }
    kept.push_back(keeps ? gradient.flat().count : 0);
  }
  errors.allocate(kept);
}

DTRAIN_DEFINED void detail::add_errors(ddp::Residuals& errors, std::span<const ddp::BucketGradient> gradients, DType to,
                                       float divisor) noexcept {
  for (const ddp::BucketGradient& gradient : gradients) {
    const std::span<float> error = errors.of(gradient.parameter);
    if (!error.empty()) kernels::add_cast_error(gradient.view.data, error.data(), error.size(), to, divisor);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::hooks
