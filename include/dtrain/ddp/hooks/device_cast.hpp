#pragma once
/// @file
/// DeviceCast: rounds the f32 values of a bucket to 16 bits on a device, and widens what has been reduced.

#include "dtrain/core/config.hpp"

#include <cstddef>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/device.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
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
/// others have not read. Work of one stream. Threads: one at a time.
template <>
class DeviceCast<stream::cuda::StreamRef> {
 public:
  /// Loads the kernels now, because loading may wait for work that waits for other ranks. Blocking.
  /// @param narrowed f16 or bf16 @throws Error (unsupported) if the driver does not load them
  DeviceCast(DType narrowed, const Device& device)
      : dtype_(loaded(narrowed, device)), narrow_(DType::f32, narrowed), widen_(narrowed, DType::f32) {}

  /// Enqueued. Allocates if no earlier bucket was as large. Lifetime: until the next call's work runs.
  /// @returns the values times `factor`, rounded once to nearest even @throws Error (cuda)
  BufferView narrow(const BufferView& values, float factor, stream::cuda::StreamRef stream) {
    const BufferView halves{at_least(values.count * size_bytes(dtype_), values.device.index), values.count, dtype_,
                            values.device};
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

  /// Smaller memory stays: enqueued work and graphs use it.
  std::byte* at_least(std::size_t bytes, int device) {
    if (memory_.empty() || memory_.back().bytes() < bytes) {
      const stream::cuda::RelaxedCapture relaxed;  // the step may be captured
      memory_.emplace_back(bytes, device);
    }
    return memory_.back().data();
  }

  DType dtype_;
  stream::cuda::ScaledCopyBatch narrow_;
  stream::cuda::ScaledCopyBatch widen_;
  std::vector<stream::cuda::DeviceBuffer> memory_;
};

#endif  // DTRAIN_WITH_CUDA

}  // namespace DTRAIN_NAMESPACE::ddp
