#pragma once
/// @file
/// PackingAtReady of a CudaGradientCopier: copies each gradient to an arena whose memory buckets reuse, as soon as it
/// is ready.

#include <atomic>
#include <cstddef>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// The copy is enqueued on the stream that produces the gradient: later work of that stream may use the gradient's
/// memory again. Bucket k takes the memory of bucket k-2, for whose work the stream waits first. A gradient of bucket k
/// that is ready before bucket k-2 is launched is copied to a side buffer. Side buffers stay for later steps. Threads:
/// pack() runs concurrently for different parameters, beside launched(); all other calls run between steps. Steady
/// state: allocates nothing.
class PackingAtReady {
 public:
  /// Adopts a plan, which outlives the object.
  void plan(const BucketPlan& plan) {
    plan_ = &plan;
    if (!plan.reuses_memory || !packs_.empty()) return;
    free_ = std::vector<stream::cuda::Event>(plan.buckets.size());
    early_ = std::vector<stream::cuda::DeviceBuffer>(plan.bucket_of.size());
    for (const std::size_t bucket : plan.bucket_of) {
      const DType dtype = plan.buckets[bucket].dtype;
      packs_.emplace_back(dtype, dtype);
      packs_.back().reserve(1);
    }
  }

  void begin_step() noexcept { launched_.store(0, std::memory_order_relaxed); }

  /// Enqueued on `stream`. @param factor of the gradient in the arena @param earlier the end of the last step's work;
  /// null if that was captured in a graph
  /// @returns the place of the gradient in the arena; or a side buffer, whose gradient is not multiplied
  /// @throws Error (cuda)
  const std::byte* pack(std::size_t parameter, const std::byte* gradient, const GradientSlot& slot, double factor,
                        StreamHandle stream, const stream::cuda::Event* earlier) {
    if (slot.bytes == 0) return slot.place;
    const std::size_t bucket = plan_->bucket_of[parameter];
    const bool is_early = launched_.load(std::memory_order_acquire) + distance <= bucket;
    if (is_early && early_[parameter].bytes() == 0) {
      const stream::cuda::RelaxedCapture relaxed;
      early_[parameter] = stream::cuda::DeviceBuffer(slot.bytes, stream.device.index);
    }
    std::byte* const to = is_early ? early_[parameter].data() : slot.place;
    stream::cuda::with_stream(stream, [&](stream::cuda::StreamRef producer) {
      if (bucket >= distance && !is_early) producer.wait(free_[bucket - distance]);
      if (bucket < distance && earlier != nullptr && !producer.is_capturing()) producer.wait(*earlier);
      packs_[parameter].add(to, gradient, slot.bytes / size_bytes(plan_->buckets[bucket].dtype));
      packs_[parameter].enqueue(is_early ? 1 : factor, producer);
      // Another bucket has used the memory up to the next gradient. (Behind an early one, before_collective clears it.)
      if (const std::size_t padding = detail::padded(slot.bytes) - slot.bytes; padding != 0 && !is_early) {
        stream::cuda::check(cudaMemsetAsync(to + slot.bytes, 0, padding, producer.native()), "cudaMemsetAsync");
      }
    });
    return to;
  }

  /// Called once all work that uses the bucket's place is enqueued.
  void launched(std::size_t bucket, stream::cuda::StreamRef stream) {
    stream.record(free_[bucket]);
    launched_.store(bucket + 1, std::memory_order_release);
  }

 private:
  static constexpr std::size_t distance = 2;  ///< in buckets; see with_reused_memory

  const BucketPlan* plan_ = nullptr;
  std::vector<stream::cuda::ScaledCopyBatch> packs_;  ///< of each parameter; empty unless the plan reuses memory
  std::vector<stream::cuda::DeviceBuffer> early_;     ///< of each parameter
  std::vector<stream::cuda::Event> free_;             ///< of each bucket: complete once its place is free
  std::atomic<std::size_t> launched_{0};              ///< buckets of this step
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
