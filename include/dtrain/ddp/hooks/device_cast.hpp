#pragma once
/// @file
/// DeviceCast: converts the values of buckets to the type in which hooks::Cast and hooks::Widen reduce them on a CUDA
/// device, and back.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
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

/// @throws Error (invalid_argument): a hook was not told the plan of a bucket. @param hook such as hooks::Cast
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
