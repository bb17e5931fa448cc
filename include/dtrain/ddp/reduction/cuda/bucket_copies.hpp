#pragma once
/// @file
/// BucketCopies of a CudaGradientCopier: pack, unpack or scale a bucket's gradients. PackingAtReady: packs each one
/// when it is ready.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/copy_batch.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// A kernel copies the gradients of a bucket of floats together, at the speed of the memory, and is one node of a
/// graph. The runtime copies other types, and all types if the driver does not load the kernel: one gradient after the
/// other, each a node. The kernel and the runtime copy all bits. Steady state: allocates nothing. Threads: one at a
/// time.
class BucketCopies {
 public:
  using Stream = stream::cuda::StreamRef;

  /// Adopts a plan. The first call loads the kernels of the plan's types: later loading may wait for collectives that
  /// wait for other ranks.
  /// @param multiplies whether enqueue() gets other factors than 1: requires kernels for all types, which are loaded
  void plan(const BucketPlan& plan, bool multiplies, Stream stream) {
    type_of_.clear();
    for (const PlannedBucket& bucket : plan.buckets) {
      const DType dtype = bucket.dtype;
      const auto known = std::find_if(types_.begin(), types_.end(),
                                      [dtype](const TypedCopies& typed) { return typed.dtype == dtype; });
      type_of_.push_back(static_cast<std::size_t>(known - types_.begin()));
      if (known != types_.end()) {
        known->is_loaded = known->is_loaded || multiplies;
        continue;
      }
      types_.push_back({dtype, stream::cuda::ScaledCopyBatch::load(dtype, dtype, stream), {dtype, dtype}});
      types_.back().by_kernel.reserve(plan.bucket_of.size());
    }
    by_runtime_.reserve(plan.bucket_of.size());
  }

  /// Adds a copy, of the same bucket as all others since the last enqueue(), or for
  /// enqueue_all_in_place().
  void add(std::size_t bucket, std::byte* to, const std::byte* from, std::size_t bytes) {
    if (TypedCopies& typed = types_[type_of_[bucket]]; typed.is_loaded) {
      typed.by_kernel.add(to, from, bytes / size_bytes(typed.dtype));
    } else {
      by_runtime_.add(to, from, bytes);
    }
  }

  /// Whether no gradient of the bucket was added since the last enqueue().
  bool empty(std::size_t bucket) const noexcept {
    const TypedCopies& typed = types_[type_of_[bucket]];
    return typed.is_loaded ? typed.by_kernel.empty() : by_runtime_.empty();
  }

  /// Enqueues the copies that were added, all of this bucket. @throws Error (cuda)
  void enqueue(std::size_t bucket, double factor, Stream stream) {
    if (TypedCopies& typed = types_[type_of_[bucket]]; typed.is_loaded) {
      typed.by_kernel.enqueue(factor, stream);
    } else {
      by_runtime_.enqueue(stream);
    }
  }

  /// Enqueues the multiplication of gradients that were added as copies onto themselves, of any buckets, by the f64 at
  /// `factor` in device memory. Requires the kernels for that of all types: ScaledCopyBatch::load_in_place.
  /// @throws Error (cuda)
  void enqueue_all_in_place(const double* factor, Stream stream) {
    for (TypedCopies& typed : types_) {
      typed.by_kernel.enqueue_in_place(factor, stream);
    }
  }

 private:
  struct TypedCopies {
    DType dtype;
    bool is_loaded;
    stream::cuda::ScaledCopyBatch by_kernel;
  };

  std::vector<TypedCopies> types_;
  std::vector<std::size_t> type_of_;  ///< each bucket's index into types_
  stream::cuda::CopyBatch by_runtime_;
};

/// The copy is enqueued on the stream that produces the gradient: later work of that stream may use the gradient's
/// memory again. Bucket k takes the memory of bucket k-2, for whose work the stream waits first. A gradient of bucket k
/// that is ready before bucket k-2 is launched is copied to a side buffer. Side buffers stay for later steps. Threads:
/// pack() runs concurrently for different parameters, and with launched(); all other calls run between steps. Steady
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
      // Another bucket has used the memory up to the next gradient. (After an early one, before_collective clears it.)
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
  static constexpr std::size_t distance = 2;  ///< number of buckets; see with_reused_memory

  const BucketPlan* plan_ = nullptr;
  std::vector<stream::cuda::ScaledCopyBatch> packs_;  ///< copy of each parameter; empty unless the plan reuses memory
  std::vector<stream::cuda::DeviceBuffer> early_;     ///< side buffer of each parameter
  std::vector<stream::cuda::Event> free_;             ///< event of each bucket: complete once its place is free
  std::atomic<std::size_t> launched_{0};              ///< buckets of this step
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
