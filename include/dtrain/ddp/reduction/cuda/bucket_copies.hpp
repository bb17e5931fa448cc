#pragma once
/// @file
/// BucketCopies: the copies that pack and unpack the gradients of a bucket in device memory.

#include <algorithm>
#include <cstddef>
#include <optional>
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
  /// wait for other ranks. Lifetime: the plan outlives its use here.
  /// @param multiplies whether enqueue() gets other factors than 1: requires kernels for all types, which are loaded
  void plan(const BucketPlan& plan, bool multiplies, Stream stream) {
    plan_ = &plan;
    by_kernel_.clear();
    for (const PlannedBucket& bucket : plan.buckets) {
      auto& copies = by_kernel_.emplace_back();
      if (multiplies || loads_kernel(bucket.dtype, stream)) {
        copies.emplace(bucket.dtype, bucket.dtype).reserve(bucket.parameters.size());
      }
    }
    by_runtime_.reserve(plan.bucket_of.size());
  }

  void add(std::size_t bucket, std::byte* to, const std::byte* from, std::size_t bytes) {
    if (auto& kernel = by_kernel_[bucket]) {
      kernel->add(to, from, bytes / size_bytes(plan_->buckets[bucket].dtype));
    } else {
      by_runtime_.add(to, from, bytes);
    }
  }

  /// Whether no gradient of the bucket was added since the last enqueue().
  bool empty(std::size_t bucket) const noexcept {
    const auto& kernel = by_kernel_[bucket];
    return kernel ? kernel->empty() : by_runtime_.empty();
  }

  /// Enqueues the copies that were added, all of this bucket. @throws Error (cuda)
  void enqueue(std::size_t bucket, double factor, Stream stream) {
    if (auto& kernel = by_kernel_[bucket]) {
      kernel->enqueue(factor, stream);
    } else {
      by_runtime_.enqueue(stream);
    }
  }

 private:
  struct LoadedType {
    DType dtype;
    bool is_loaded;
  };

  bool loads_kernel(DType dtype, Stream stream) {
    const auto known =
        std::find_if(types_.begin(), types_.end(), [dtype](const LoadedType& loaded) { return loaded.dtype == dtype; });
    if (known != types_.end()) return known->is_loaded;
    types_.push_back({dtype, stream::cuda::ScaledCopyBatch::load(dtype, dtype, stream)});
    return types_.back().is_loaded;
  }

  const BucketPlan* plan_ = nullptr;
  std::vector<std::optional<stream::cuda::ScaledCopyBatch>> by_kernel_;  ///< of each bucket
  stream::cuda::CopyBatch by_runtime_;                                   ///< of one bucket at a time
  std::vector<LoadedType> types_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
