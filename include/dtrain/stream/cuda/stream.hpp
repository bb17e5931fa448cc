#pragma once
/// @file
/// stream::cuda::Stream: owner of a CUDA stream with a Priority. CommunicationStream: the high-priority one of a group
/// or wrapper.

#include <memory>
#include <optional>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Priority of a stream: the device's scheduler takes work of high priority first.
/// @ingroup streams
enum class Priority { normal, high };

/// Owns a stream that does not wait for the default stream. Lifetime: outlives its references. Enqueued work runs on
/// after the stream's destruction; the work's memory outlives the work.
/// @ingroup streams
class Stream {
 public:
  /// A stream of the thread's current device. @throws Error (cuda)
  explicit Stream(Priority priority = Priority::normal) : Stream(priority, current_device()) {}

  Stream(Priority priority, int device) : device_(device) {
    const DeviceGuard guard(device);
    int lowest = 0;
    int highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == Priority::high ? highest : lowest),
          "cudaStreamCreateWithPriority");
    stream_.reset(stream);
  }

  StreamRef ref() const noexcept { return {stream_.get(), device_}; }

 private:
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, ReleasedBy<cudaStreamDestroy>> stream_;
  int device_ = 0;
};

/// Owns a stream of high priority, on the thread's current device at the first call of ref().
/// Threads: one at a time. Lifetime: outlives its references.
/// @ingroup streams
class CommunicationStream {
 public:
  CommunicationStream() noexcept = default;

  /// @throws Error (cuda)
  StreamRef ref() const {
    if (!stream_) {
      stream_.emplace(Priority::high);
    }
    return stream_->ref();
  }

 private:
  mutable std::optional<Stream> stream_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
