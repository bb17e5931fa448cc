#pragma once
/// @file
/// What tests of CUDA do with memory and streams, with the runtime's own calls: on the emulation and on a GPU alike.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"
#include "support/sanitized.hpp"

namespace support {

/// backend::Staged asks for hardware queues when a rank begins. Ranks of a test are threads, beside which no variable
/// may be set, and an earlier test has made the context.
inline const bool has_asked_for_queues = ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0;

using dtrain::stream::cuda::check;
using dtrain::stream::cuda::DeviceBuffer;
using dtrain::stream::cuda::StreamRef;

/// Blocking: until the stream has run what it holds. @returns whether it did in time
inline bool completes(StreamRef stream, std::chrono::seconds patience = std::chrono::seconds(is_sanitized ? 240 : 60)) {
  dtrain::stream::cuda::Event event;
  stream.record(event);
  return event.block_until_complete(dtrain::Deadline::after(patience)) == dtrain::stream::WaitResult::complete;
}

/// Blocking: copies, by a stream of its own. A wait for the whole device would wait for ranks that wait for this one.
inline void copy_blocking(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return;
  const dtrain::stream::cuda::Stream stream;
  check(cudaMemcpyAsync(to, from, bytes, kind, stream.ref().native()), "cudaMemcpyAsync");
  if (!completes(stream.ref())) throw dtrain::Error(dtrain::Errc::timeout, "a copy of a test's did not end");
}

/// Blocking: the values are on the device then.
template <class T>
void write(std::byte* device, const std::vector<T>& values) {
  copy_blocking(device, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
}

/// Device memory with these values. Blocking. Its end waits for the whole device.
template <class T>
DeviceBuffer on_device(const std::vector<T>& values) {
  DeviceBuffer buffer(values.size() * sizeof(T));
  write(buffer.data(), values);
  return buffer;
}

/// What device memory holds. Blocking: the work that writes it is complete.
template <class T>
std::vector<T> on_host(const std::byte* device, std::size_t count) {
  std::vector<T> values(count);
  copy_blocking(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost);
  return values;
}

/// Work of the stream that the host does, for as long as that takes. It calls nothing of CUDA.
inline void enqueue_on_host(StreamRef stream, std::function<void()> work) {
  const auto run = [](void* argument) {
    auto* const given = static_cast<std::function<void()>*>(argument);
    (*given)();
    delete given;
  };
  check(cudaLaunchHostFunc(stream.native(), run, new std::function<void()>(std::move(work))), "cudaLaunchHostFunc");
}

/// Keeps the stream busy.
inline void enqueue_delay(StreamRef stream, std::chrono::milliseconds time) {
  enqueue_on_host(stream, [time] { std::this_thread::sleep_for(time); });
}

}  // namespace support
