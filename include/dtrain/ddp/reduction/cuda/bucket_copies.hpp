#pragma once
/// @file
/// BucketCopies of CudaGradientCopier: the copies that pack and unpack a bucket's gradients, or multiply them.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/stream/cuda/copy_batch.hpp"
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
  std::vector<std::size_t> type_of_;  ///< of each bucket: index into types_
  stream::cuda::CopyBatch by_runtime_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
