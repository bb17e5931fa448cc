#pragma once
/// @file
/// hooks::Widen: reduces f16 and bf16 gradients as f32, so that sums are rounded once. A program gives it to the
/// wrapper.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/hooks/device_cast.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/hooks/hook_state.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::hooks {

namespace detail {

/// Converts `from.count` elements, rounded to nearest even.
void convert_elements(const BufferView& from, const BufferView& to) noexcept;

}  // namespace detail

/// A GradientHook that reduces f16 and bf16 gradients in f32: `DistributedDataParallel ddp{model, group, options,
/// hooks::Widen{}}`. Each rank widens its gradients, which is exact. The backend reduces the f32 values, twice as many
/// bytes, and each rank rounds the result once to nearest even. For averages on a CUDA device each rank divides in f32
/// before the sum. Gradients of other types are reduced as they are. A backend with DdpOptions::accumulate reduces in
/// f32 without further bytes; NCCL adds 16-bit elements in their own precision.
///
/// The hook works for one model. The channel allocates f32 memory for the largest bucket; on a CUDA device memory for
/// smaller buckets of earlier plans stays, and its time is not measured. Lifetime: a variable outlives its wrapper.
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
  std::byte* data_ = nullptr;        ///< in host memory, for both types
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::hooks

#if DTRAIN_DEFINITIONS

#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/float_environment.hpp"

namespace DTRAIN_NAMESPACE::hooks {

DTRAIN_DEFINED void detail::convert_elements(const BufferView& from, const BufferView& to) noexcept {
  const kernels::DefaultFloatEnvironment environment;
  kernels::convert(from.dtype, from.data, to.dtype, to.data, from.count);
}

}  // namespace DTRAIN_NAMESPACE::hooks

#endif  // DTRAIN_DEFINITIONS
