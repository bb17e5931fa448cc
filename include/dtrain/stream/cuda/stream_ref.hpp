#pragma once
/// @file
/// stream::cuda::StreamRef: a borrowed CUDA stream, which models Stream.

#include <cstddef>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/stream.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// A reference to a CUDA stream: borrows a cudaStream_t of one device. Threads: one thread enqueues at a time.
/// Lifetime: the stream outlives the reference and all work enqueued through it.
/// @ingroup streams
class StreamRef {
 public:
  using Event = cuda::Event;
  using ExternalEvent = cuda::ExternalEvent;

  StreamRef(cudaStream_t stream, int device) noexcept : stream_(stream), device_(device) {}
  StreamRef(int, int) = delete;
  StreamRef(std::nullptr_t, int) = delete;

  /// The stream of a handle. A null handle is the device's legacy default stream, also in files compiled with
  /// per-thread default streams, which wait for it. @throws Error (invalid_argument) for a host stream
  static StreamRef of(StreamHandle handle) {
    if (handle.device.kind != DeviceKind::cuda) {
      refuse_stream_of(handle.device);
    }
    return {handle.native == nullptr ? cudaStreamLegacy : static_cast<cudaStream_t>(handle.native),
            handle.device.index};
  }

  Device device() const noexcept { return {DeviceKind::cuda, device_}; }
  cudaStream_t native() const noexcept { return stream_; }
  StreamHandle handle() const noexcept { return {device(), stream_}; }

  /// Lets the event complete when all work enqueued so far is complete. @throws Error (cuda), as do the other members.
  void record(Event& event) const { event.record(stream_, device_); }

  /// Lets later work of this stream start after the event's latest record. Enqueued; the host does not block.
  void wait(const Event& event) const {
    if (event.native() != nullptr) {
      check(cudaStreamWaitEvent(stream_, event.native(), 0), "cudaStreamWaitEvent");
    }
  }

  /// Later work starts after `event.signal()`, or at the deadline, which then completes the event with `timed_out()`.
  /// Enqueued; the host does not block. Lifetime: the event outlives this work.
  void wait(ExternalEvent& event, Deadline deadline) const { event.enqueue_wait(stream_, deadline, true); }

  /// As wait(), if the signalling thread keeps the deadline itself: no thread watches the clock.
  void wait_unwatched(ExternalEvent& event, Deadline deadline) const { event.enqueue_wait(stream_, deadline, false); }

  /// Whether work enqueued now becomes part of a graph instead of running.
  bool is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t code = cudaStreamIsCapturing(stream_, &status);
    if (code == cudaErrorStreamCaptureImplicit) {  // the default stream, while a stream that it orders is captured
      return !quiet(code);
    }
    check(code, "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }

  friend bool operator==(StreamRef, StreamRef) = default;

 private:
  [[noreturn]] DTRAIN_NOT_INLINED static void refuse_stream_of(Device device) {
    throw_error(Errc::invalid_argument,
                "a stream of {} was given where a CUDA stream is needed; pass the cudaStream_t that the work was "
                "enqueued on, with its device",
                {to_string(device)});
  }

  cudaStream_t stream_;
  int device_;
};

static_assert(stream::Stream<StreamRef>);
static_assert(CanWaitExternal<StreamRef>);

/// Calls `act(stream)`. The default stream (null) belongs to the current device, so the handle's device becomes
/// current.
template <class F>
void with_stream(StreamHandle handle, F act) {
  if (handle.native == nullptr) {
    const DeviceGuard guard(handle.device.index);
    act(StreamRef::of(handle));
  } else {
    act(StreamRef::of(handle));
  }
}

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
