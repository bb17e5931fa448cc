#pragma once
/// @file
/// Collectives of LibTorch tensors in the order of LibTorch's current CUDA stream, without host waits.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/libtorch/modules.hpp"

#if DTRAIN_WITH_CUDA && __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#include <c10/cuda/CUDAStream.h>
#endif

namespace DTRAIN_NAMESPACE::libtorch::detail {

/// Kind of the device whose tensors a policy's groups reduce.
template <class P>
inline constexpr DeviceKind kind_of = P::ChannelBackend::supports(DeviceKind::host) ? DeviceKind::host
                                                                                    : DeviceKind::cuda;

/// Stream on which LibTorch enqueues this thread's work for `device`, a device of kind `Kind`.
template <DeviceKind Kind>
StreamHandle current_stream(Device) {
  static_assert(
      Kind == DeviceKind::host,
      "dtrain: a backend for GPUs needs a LibTorch for CUDA: this one has no <c10/cuda/impl/cuda_cmake_macros.h>");
  return {};
}

/// Before a tensor is freed: LibTorch gives its memory to another tensor only when the present work of the current
/// stream has run.
template <DeviceKind Kind>
void keep_until_used(const torch::Tensor&) {}

/// Whether that stream's work becomes part of a CUDA graph instead of running.
template <DeviceKind Kind>
bool is_captured(Device) {
  return false;
}

#if DTRAIN_WITH_CUDA && __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
template <>
inline StreamHandle current_stream<DeviceKind::cuda>(Device device) {
  if (device.kind != DeviceKind::cuda) return {};
  return {device, c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device.index)).stream()};
}
template <>
inline void keep_until_used<DeviceKind::cuda>(const torch::Tensor& tensor) {
  tensor.record_stream(c10::cuda::getCurrentCUDAStream(tensor.get_device()));
}
template <>
inline bool is_captured<DeviceKind::cuda>(Device device) {
  bool captured = false;
  const StreamHandle stream = current_stream<DeviceKind::cuda>(device);
  if (stream.device.kind == DeviceKind::cuda) {
    stream::cuda::with_stream(stream, [&captured](auto present) { captured = present.is_capturing(); });
  }
  return captured;
}
#endif

/// Collective. For memory of a GPU enqueued: `operation` runs after the earlier work of the current stream and before
/// its later work (group::enqueue_within). Elsewhere blocking: `call()`.
template <class P, class Operation, class Call>
void in_stream_order(const ProcessGroup<P>& group, [[maybe_unused]] const Operation& operation, Call call) {
  if constexpr (kind_of<P> == DeviceKind::cuda) {
    const Device device = operation.devices()[1];
    if (device.kind == DeviceKind::cuda) {
      enqueue_within(group::GroupAccess::of(group), current_stream<kind_of<P>>(device), operation);
      return;
    }
  }
  call();
}

/// Reduces a contiguous tensor in place. @see in_stream_order
template <class P>
void all_reduce_in_order(const ProcessGroup<P>& group, const torch::Tensor& values, ReduceOp op) {
  const BufferView view = view_of(values).flat();
  in_stream_order(group, backend::AllReduce{view, view, op}, [&] { group.all_reduce(view, op); });
}

/// Gives every rank rank 0's elements. @see in_stream_order
template <class P>
void broadcast_in_order(const ProcessGroup<P>& group, const torch::Tensor& values) {
  const BufferView view = view_of(values).flat();
  in_stream_order(group, backend::Broadcast{view, 0}, [&] { group.broadcast(view, 0); });
}

/// Row r of `all` gets rank r's `own`. Both are contiguous. @see in_stream_order
template <class P>
void all_gather_in_order(const ProcessGroup<P>& group, const torch::Tensor& own, const torch::Tensor& all) {
  const BufferView input = view_of(own).flat(), output = view_of(all).flat();
  in_stream_order(group, backend::AllGather{input, output}, [&] { group.all_gather(input, output); });
}

/// Maximum over the ranks of each flag. Collective. On a GPU of `device` enqueued, and blocking only if `is_needed`;
/// without it `flags` stay this rank's own there. Elsewhere blocking.
template <class P>
void all_reduce_flags(const ProcessGroup<P>& group, [[maybe_unused]] Device device, std::vector<std::int32_t>& flags,
                      [[maybe_unused]] bool is_needed) {
  if constexpr (kind_of<P> == DeviceKind::cuda) {
    // Pinned, so that no copy waits; LibTorch keeps the memory until its stream has copied it.
    const auto count = static_cast<std::int64_t>(flags.size());
    const torch::Tensor host = torch::empty({count}, torch::TensorOptions(torch::kInt32).pinned_memory(true));
    std::copy(flags.begin(), flags.end(), host.data_ptr<std::int32_t>());
    const torch::Tensor values =
        host.to(torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(device.index)), true);
    all_reduce_in_order(group, values, ReduceOp::max);
    if (!is_needed) return;
    host.copy_(values, true);
    wait_for_stream(group::GroupAccess::of(group), current_stream<kind_of<P>>(device));
    std::copy_n(host.data_ptr<std::int32_t>(), count, flags.begin());
  } else {
    group.all_reduce(std::span<std::int32_t>(flags), ReduceOp::max);
  }
}

}  // namespace DTRAIN_NAMESPACE::libtorch::detail
