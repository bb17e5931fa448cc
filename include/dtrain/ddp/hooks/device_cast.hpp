#pragma once
/// @file
/// DeviceCast: rounds the f32 values of a bucket to 16 bits on a device, and widens what has been reduced.

#include "dtrain/core/config.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/device.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/relaxed_capture.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// For streams that do not run work of the host.
template <class Stream>
class DeviceCast;

#if DTRAIN_WITH_CUDA

/// The 16-bit values are in memory of this object, because threads that narrow an array in its own place overwrite what
/// others have not read. The channel allocates it, as the arena: memory that NCCL has registered is reduced without a
/// copy. Work of one stream. Threads: one at a time.
template <>
class DeviceCast<stream::cuda::StreamRef> {
 public:
  /// Loads the kernels now, because loading may wait for work that waits for other ranks. Blocking.
  /// @param narrowed f16 or bf16 @throws Error (unsupported) if the driver does not load them
  DeviceCast(DType narrowed, const Device& device)
      : dtype_(loaded(narrowed, device)), narrow_(DType::f32, narrowed), widen_(narrowed, DType::f32) {}

  /// Collective, blocking: makes room for the values of the largest bucket. Between steps; smaller memory stays,
  /// because graphs use it. @throws as the channel's allocate_blocking
  template <backend::CanAllocate C>
  void plan(C& channel, const BucketPlan& plan, Deadline deadline) {
    std::size_t bytes = 0;
    for (const PlannedBucket& bucket : plan.buckets) {
      if (bucket.dtype == DType::f32) bytes = std::max(bytes, bucket.bytes / sizeof(float) * size_bytes(dtype_));
    }
    if (bytes <= bytes_) return;
    auto memory = std::make_shared<typename C::Allocation>(channel.allocate_blocking(bytes, deadline));
    data_ = memory->data();
    bytes_ = bytes;
    memory_.push_back(std::move(memory));
  }

  /// Enqueued. Lifetime: until the next call's work runs. @returns the values times `factor`, rounded once to nearest
  /// even @throws Error (invalid_argument) without room for them; (cuda)
  BufferView narrow(const BufferView& values, float factor, stream::cuda::StreamRef stream) {
    const BufferView halves{data_, values.count, dtype_, values.device};
    if (halves.bytes() > bytes_) refuse_unplanned(values);
    narrow_.add(halves.data, values.data, values.count);
    narrow_.enqueue(factor, stream);
    return halves;
  }

  /// Enqueued. @throws Error (cuda)
  void widen(const BufferView& halves, const BufferView& values, stream::cuda::StreamRef stream) {
    widen_.add(values.data, halves.data, values.count);
    widen_.enqueue(1, stream);
  }

 private:
  static DType loaded(DType narrowed, const Device& device) {
    using stream::cuda::ScaledCopyBatch;
    const stream::cuda::RelaxedCapture relaxed;  // the step may be captured
    const stream::cuda::Stream stream(stream::cuda::Priority::normal, device.index);
    if (!ScaledCopyBatch::load(DType::f32, narrowed, stream.ref()) ||
        !ScaledCopyBatch::load(narrowed, DType::f32, stream.ref())) {
      throw_error(Errc::unsupported,
                  "the CUDA driver does not load the kernel with which hooks::Cast rounds gradients on {}: it is older "
                  "than CUDA 12, or cannot compile PTX; update it, or leave the hook out",
                  {to_string(device)});
    }
    return narrowed;
  }

  [[noreturn]] DTRAIN_NOT_INLINED static void refuse_unplanned(const BufferView& values) {
    throw_error(
        Errc::invalid_argument,
        "hooks::Cast has no memory on {} for a bucket of {} values; a hook that passes its calls on also passes "
        "plan(channel, plan, deadline)",
        {to_string(values.device), values.count});
  }

  DType dtype_;
  stream::cuda::ScaledCopyBatch narrow_;
  stream::cuda::ScaledCopyBatch widen_;
  std::vector<std::shared_ptr<const void>> memory_;  ///< allocations of the channel; the last one is in use
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::ddp
