/// @file
/// Calls about streams, host functions among them.

#include "api.hpp"
#include "capture.hpp"
#include "futex.hpp"
#include "stream.hpp"

using namespace emulation;

namespace {

/// Of a device's context, which runs one host function at a time. Relaxed: one host function is no order for another.
struct HostFunctions {
  std::atomic<bool> is_running{false};
  std::atomic<std::uint32_t> ended{0};
};
std::array<HostFunctions, most_devices> host_functions{};

void run_host_function(int device, cudaHostFn_t function, void* data) {
  HostFunctions& context = host_functions[static_cast<std::size_t>(device)];
  wait_until(context.ended, [&] { return !context.is_running.exchange(true, std::memory_order_relaxed); });
  {
    const RuntimeScope program(false);
    function(data);
  }
  context.is_running.store(false, std::memory_order_relaxed);
  notify(context.ended);
}

}  // namespace

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return call("cudaStreamCreateWithPriority", [&] {
    // Streams that synchronise with the default stream are not emulated.
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;
    if (device_count() == 0) return cudaErrorNoDevice;
    *stream = handle_of(new Stream(current_device()));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", stream, [&] {
    if (is_default_stream(stream) || stream_of(stream) == nullptr) return cudaErrorInvalidResourceHandle;
    stream_of(stream)->end();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call("cudaStreamQuery", stream, [&] {
    const Stream* const where = stream_of(stream);
    if (where == nullptr) return cudaErrorInvalidResourceHandle;
    if (Capture* const capture = where->capture()) {
      capture->invalidate();
      return cudaErrorStreamCaptureUnsupported;
    }
    return where->is_complete() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", stream, [&] {
    const Stream* const where = stream_of(stream);
    if (where == nullptr) return cudaErrorInvalidResourceHandle;
    if (Capture* const capture = where->capture()) {
      capture->invalidate();
      return cudaErrorStreamCaptureUnsupported;
    }
    count_host_wait();
    where->block_until_complete();
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call("cudaLaunchHostFunc", stream, [&] {
    Stream* const where = stream_of(stream);
    if (where == nullptr) return cudaErrorInvalidResourceHandle;
    if (function == nullptr) return cudaErrorInvalidValue;
    where->submit([device = where->device(), function, data] {
      return [device, function, data] { run_host_function(device, function, data); };
    });
    return cudaSuccess;
  });
}
