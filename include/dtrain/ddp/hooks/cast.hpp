#pragma once
/// @file
/// hooks::Cast: gradient hook that reduces f32 gradients in 16 bits. hooks::Widen: 16-bit gradients in f32. DeviceCast:
/// CUDA conversion.

#include <algorithm>
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
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/hooks/hook_state.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/kernels/in_place_cast.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Bytes of the largest bucket of type `from` after a conversion to `to`; 0 without such a bucket.
inline std::size_t converted_bytes(const BucketPlan& plan, DType from, DType to) noexcept {
  std::size_t bytes = 0;
  for (const PlannedBucket& bucket : plan.buckets) {
    if (bucket.dtype == from) bytes = std::max(bytes, bucket.bytes / size_bytes(from) * size_bytes(to));
  }
  return bytes;
}

/// @throws Error (invalid_argument): a hook has not got the plan of a bucket. @param hook its name, "hooks::Cast"
[[noreturn]] inline void refuse_unplanned(const char* hook, const BufferView& values) {
  throw_error(Errc::invalid_argument,
              "{} has no memory on {} for a bucket of {} values; a hook that passes its calls on also passes "
              "plan(channel, plan, deadline)",
              {hook, to_string(values.device), values.count});
}

/// Conversion on a device, for streams that do not run host work.
template <class Stream>
class DeviceCast;

#if DTRAIN_WITH_CUDA

/// Conversion on a CUDA device. The converted values are in memory of this object: threads that convert in place would
/// overwrite elements that other threads have not read. The channel allocates this memory, as it does the arena: NCCL
/// reduces registered memory without a copy. Work of one stream. Threads: one at a time.
template <>
class DeviceCast<stream::cuda::StreamRef> {
 public:
  /// Loads the kernels now, because loading may wait for work that waits for other ranks. Blocking.
  /// @param hook for error sentences; outlives this object
  /// @param from type of the buckets that are converted, f32, f16 or bf16, as @param to, which the collective gets
  /// @throws Error (unsupported) if the driver does not load the kernels
  DeviceCast(const char* hook, DType from, DType to, const Device& device)
      : hook_(hook), from_(from), to_(loaded(hook, from, to, device)), forth_(from, to), back_(to, from) {}

  /// Collective, blocking: allocates memory for the values of the largest bucket. Called between steps. Smaller memory
  /// stays, because graphs use it. @throws as the channel's allocate_blocking
  template <backend::CanAllocate C>
  void plan(C& channel, const BucketPlan& plan, Deadline deadline) {
    const std::size_t bytes = converted_bytes(plan, from_, to_);
    if (bytes <= bytes_) return;
    auto memory = std::make_shared<typename C::Allocation>(channel.allocate_blocking(bytes, deadline));
    data_ = memory->data();
    bytes_ = bytes;
    memory_.push_back(std::move(memory));
  }

  /// Enqueues the conversion. Lifetime: the result is valid until the next call's work runs. @returns the values times
  /// `factor`, rounded once to nearest even @throws Error (invalid_argument) without memory for the values; (cuda)
  BufferView convert(const BufferView& values, float factor, stream::cuda::StreamRef stream) {
    const BufferView converted{data_, values.count, to_, values.device};
    if (converted.bytes() > bytes_) refuse_unplanned(hook_, values);
    forth_.add(converted.data, values.data, values.count);
    forth_.enqueue(factor, stream);
    return converted;
  }

  /// Enqueues the conversion of `converted` to `values`, rounded to nearest even. @throws Error (cuda)
  void convert_back(const BufferView& converted, const BufferView& values, stream::cuda::StreamRef stream) {
    back_.add(values.data, converted.data, values.count);
    back_.enqueue(1, stream);
  }

 private:
  static DType loaded(const char* hook, DType from, DType to, const Device& device) {
    using stream::cuda::ScaledCopyBatch;
    const stream::cuda::RelaxedCapture relaxed;  // the step may be captured
    const stream::cuda::Stream stream(stream::cuda::Priority::normal, device.index);
    if (!ScaledCopyBatch::load(from, to, stream.ref()) || !ScaledCopyBatch::load(to, from, stream.ref())) {
      throw_error(Errc::unsupported,
                  "the CUDA driver does not load the kernel with which {} rounds gradients on {}: it is older than "
                  "CUDA 12, or cannot compile PTX; update it, or leave the hook out",
                  {hook, to_string(device)});
    }
    return to;
  }

  const char* hook_;
  DType from_;
  DType to_;
  stream::cuda::ScaledCopyBatch forth_;
  stream::cuda::ScaledCopyBatch back_;
  std::vector<std::shared_ptr<const void>> memory_;  ///< allocations of the channel; the last one is in use
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::ddp

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
/// Converts `from.count` elements, rounded to nearest even.
void convert_elements(const BufferView& from, const BufferView& to) noexcept;

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
/// Lifetime: with error feedback one model. A hook given as std::ref(hook) outlives its wrapper.
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
  template <class C>
  void connect(const ddp::GradientBucket<C>& zeros) {
    reduce(zeros);
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

/// A GradientHook that reduces f16 and bf16 gradients in f32: `DistributedDataParallel ddp{model, group, options,
/// hooks::Widen{}}`. Each rank widens its gradients, which is exact. The backend reduces the f32 values, twice as many
/// bytes, and each rank rounds the result once to nearest even. For averages on a CUDA device each rank divides in f32
/// before the sum. Gradients of other types are reduced as they are. A backend with DdpOptions::accumulate reduces in
/// f32 without further bytes; NCCL adds 16-bit elements in their own precision.
///
/// The hook works for one model. The channel allocates f32 memory for the largest bucket; on a CUDA device memory for
/// smaller buckets of earlier plans stays, and its time is not measured. Lifetime: a hook given as std::ref(hook)
/// outlives its wrapper.
/// @ingroup hooks
class Widen {
 public:
  std::string description() const { return "hooks::Widen"; }

  /// @throws Error (invalid_argument) for a second model, (unsupported) if a device cannot convert
  template <class C>
  void prepare(std::span<const Parameter> parameters) {
    if (is_prepared_) ddp::refuse_second_model("hooks::Widen");
    is_prepared_ = true;
    if constexpr (!ddp::RunsHostWork<typename C::Stream>) {
      for (const Parameter& parameter : parameters) {
        const TensorView& gradient = parameter.gradient;
        if (widens(gradient.dtype)) static_cast<void>(on_device<C>(gradient.dtype, gradient.device));
      }
    }
  }

  /// Collective, blocking: allocates memory for the f32 values. @throws as the channel's allocate_blocking
  template <class C>
  void plan(C& channel, const ddp::BucketPlan& plan, Deadline deadline) {
    const std::size_t bytes[] = {ddp::converted_bytes(plan, DType::f16, DType::f32),
                                 ddp::converted_bytes(plan, DType::bf16, DType::f32)};
    if constexpr (ddp::RunsHostWork<typename C::Stream>) {
      const std::size_t most = std::max(bytes[0], bytes[1]);
      if (most <= bytes_) return;
      auto memory = std::make_shared<typename C::Allocation>(channel.allocate_blocking(most, deadline));
      data_ = memory->data();
      bytes_ = most;
      memory_[0] = std::move(memory);
    } else {
      for (const DType dtype : {DType::f16, DType::bf16}) {
        if (bytes[index(dtype)] != 0) on_device<C>(dtype, plan.buckets.front().device).plan(channel, plan, deadline);
      }
    }
  }

  template <class C>
  void reduce(const ddp::GradientBucket<C>& bucket) {
    const BufferView& all = bucket.values;
    if (!widens(all.dtype)) {
      bucket.channel.enqueue(backend::AllReduce{all, all, bucket.op}, bucket.stream);
    } else if constexpr (ddp::RunsHostWork<typename C::Stream>) {
      const BufferView floats{data_, all.count, DType::f32, all.device};
      if (floats.bytes() > bytes_) ddp::refuse_unplanned("hooks::Widen", all);
      bucket.compress([all, floats]() noexcept { detail::convert_elements(all, floats); });
      bucket.channel.enqueue(backend::AllReduce{floats, floats, bucket.op}, bucket.stream);
      bucket.compress([all, floats]() noexcept { detail::convert_elements(floats, all); });
    } else {
      auto& cast = on_device<C>(all.dtype, all.device);
      const bool divides = bucket.op == ReduceOp::average;
      const float factor = divides ? 1.0F / static_cast<float>(bucket.channel.size()) : 1.0F;
      const BufferView floats = cast.convert(all, factor, bucket.stream);
      bucket.channel.enqueue(backend::AllReduce{floats, floats, divides ? ReduceOp::sum : bucket.op}, bucket.stream);
      cast.convert_back(floats, all, bucket.stream);
    }
  }
  template <class C>
  void connect(const ddp::GradientBucket<C>& zeros) {
    reduce(zeros);
  }

 private:
  static constexpr bool widens(DType dtype) noexcept { return dtype == DType::f16 || dtype == DType::bf16; }
  static constexpr std::size_t index(DType dtype) noexcept { return dtype == DType::f16 ? 0 : 1; }

  template <class C>
  auto& on_device(DType dtype, const Device& device) {
    using OnDevice = ddp::DeviceCast<typename C::Stream>;
    static_assert(
        requires { sizeof(OnDevice); }, "dtrain: hooks::Widen converts in host memory or on a CUDA device");
    std::shared_ptr<void>& cast = memory_[index(dtype)];
    if (!cast) cast = std::make_shared<OnDevice>("hooks::Widen", dtype, DType::f32, device);
    return *static_cast<OnDevice*>(cast.get());
  }

  bool is_prepared_ = false;
  std::shared_ptr<void> memory_[2];  ///< a DeviceCast for f16 and for bf16; in host memory first the channel's memory
  std::byte* data_ = nullptr;        ///< host memory for both types
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::hooks

#if DTRAIN_DEFINITIONS

#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/float_environment.hpp"

namespace DTRAIN_NAMESPACE::hooks {

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

DTRAIN_DEFINED void detail::convert_elements(const BufferView& from, const BufferView& to) noexcept {
  const kernels::DefaultFloatEnvironment environment;
  kernels::convert(from.dtype, from.data, to.dtype, to.data, from.count);
}

}  // namespace DTRAIN_NAMESPACE::hooks

#endif  // DTRAIN_DEFINITIONS
