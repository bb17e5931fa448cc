#pragma once
/// @file
/// DeviceLossScaler: a loss scaler whose scale is in CUDA memory, so that no step waits for it.

#include <chrono>
#include <cstddef>
#include <limits>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/kernels/norm_kernels.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// Dynamic loss scaling for models in device memory, without a wait of the host; its steps may be captured in a graph.
/// The sequence of scales is LossScaler's, and equal on all ranks.
///
///   ddp.backward(pass, {.scaler = &scaler});      // the device multiplies the loss by *scaler.scale()
///   optimizer.step(ddp.found_inf());              // a kernel that changes nothing where *found_inf is 1
///
/// A step with a dtrain::ShardedOptimizer does both, and the optimizer counts no update where a gradient of any rank is
/// not finite. The quotients are f32:
///
///   ddp.backward(pass, optimizer, {.clip_norm = 1.0, .scaler = &scaler});
///
/// The host does not know whether a step has overflowed: the optimizer's kernels read ddp.found_inf(). If a loaded
/// scale is no finite positive number, each step is as one that overflows, and the scale stays: a
/// LossScaler is rejected then. Threads: one at a time. Lifetime: outlives the work of its steps, and graphs of them.
/// Not movable.
/// @ingroup precision
class DeviceLossScaler {
 public:
  /// Allocates on the thread's current device. Blocking: until the device has the scale.
  /// @throws Error (invalid_argument) as LossScaler; (unsupported) if the driver does not load the kernel; (cuda)
  explicit DeviceLossScaler(const LossScalerOptions& options = {})
      : rule_{options.growth_factor, options.backoff_factor, options.growth_interval} {
    using stream::cuda::DeviceNorm;
    using stream::cuda::DeviceScale;
    const LossScaler checked(options);
    const stream::cuda::RelaxedCapture relaxed;  // another thread may capture
    memory_ = stream::cuda::DeviceBuffer(sizeof(DeviceScale) + sizeof(DeviceNorm));
    const stream::cuda::Stream stream(stream::cuda::Priority::normal, memory_.device());
    auto* const norm = reinterpret_cast<DeviceNorm*>(memory_.data() + sizeof(DeviceScale));
    constexpr std::chrono::seconds most{60};
    stream::cuda::zero_blocking(memory_.data(), memory_.bytes(), stream.ref(), Deadline::after(most));
    if (!kernel_.load(norm, norm, on_device(), stream.ref())) {
      throw_error(
          Errc::unsupported,
          "the CUDA driver does not load the kernel of DeviceLossScaler on cuda:{}: it is older than CUDA 12, or "
          "cannot compile PTX; update it, or use LossScaler",
          {memory_.device()});
    }
    const stream::cuda::PinnedBuffer initial(sizeof(DeviceScale));
    *reinterpret_cast<DeviceScale*>(initial.data()) = DeviceScale{checked.scale(), 0, 0};
    stream::cuda::check(
        cudaMemcpyAsync(memory_.data(), initial.data(), initial.bytes(), cudaMemcpyHostToDevice, stream.ref().native()),
        "cudaMemcpyAsync");
    stream::cuda::Event copied;
    stream.ref().record(copied);
    if (copied.block_until_complete(Deadline::after(most)) != stream::WaitResult::complete) {
      throw_error(Errc::timeout,
                  "cuda:{} had not copied 16 bytes within 60 s; is the device busy, or does a kernel hang?",
                  {memory_.device()});
    }
  }
  DeviceLossScaler(const DeviceLossScaler&) = delete;

  /// Address of the f32 scale in device memory. Work on the streams of the step's ready() reads the scale of this step
  /// before finish(), and the scale of the next step after it.
  const float* scale() const noexcept { return &on_device()->scale; }

  /// Enqueued, for steps: divides the norm by the scale if the gradients are finite, then
  /// clips it to `max_norm`, and changes the scale. @param max_norm infinity: does not clip @throws Error (cuda)
  void enqueue(stream::cuda::DeviceNorm* norm, stream::cuda::DeviceNorm* copy, double max_norm,
               stream::cuda::StreamRef stream) const {
    kernel_.enqueue(norm, copy, on_device(), rule_, max_norm, stream);
  }

  /// @param gradients index of their device @throws Error (invalid_argument) if the scale is on another device
  DTRAIN_NOT_INLINED void require_device(int gradients) const {
    if (gradients == memory_.device()) return;
    throw_error(Errc::invalid_argument,
                "DeviceLossScaler has its scale on cuda:{}, and the gradients are on cuda:{}; make the scaler after "
                "cudaSetDevice({}), for example after the wrapper",
                {memory_.device(), gradients, gradients});
  }

  /// State for save_checkpoint and load_checkpoint, in device memory, by the names of LossScaler: each loads what the
  /// other saves. Lifetime: the views refer to this object.
  std::vector<NamedTensor> state() const {
    const Device device{DeviceKind::cuda, memory_.device()};
    const auto view = [&](void* memory, DType dtype) {
      return TensorView{static_cast<std::byte*>(memory), {}, dtype, device};
    };
    return {{"loss_scaler.scale", view(&on_device()->scale, DType::f32)},
            {"loss_scaler.finite_steps", view(&on_device()->finite_steps, DType::i64)}};
  }

 private:
  stream::cuda::DeviceScale* on_device() const noexcept {
    return reinterpret_cast<stream::cuda::DeviceScale*>(memory_.data());
  }

  stream::cuda::ScaleRule rule_;
  stream::cuda::DeviceBuffer memory_;  ///< a DeviceScale, and a DeviceNorm for the load of the kernel
  stream::cuda::UnscaleKernel kernel_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::DeviceLossScaler;
}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_WITH_CUDA
