#pragma once
/// @file
/// What tests of CUDA do with memory and streams, with the runtime's own calls: on the emulation and on a GPU alike.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace support {

using dtrain::stream::cuda::check;
using dtrain::stream::cuda::DeviceBuffer;
using dtrain::stream::cuda::StreamRef;

/// Device memory with these values. Blocking: until they are there.
template <class T>
DeviceBuffer on_device(const std::vector<T>& values) {
  DeviceBuffer buffer(values.size() * sizeof(T));
  check(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return buffer;
}

/// What device memory holds. Blocking: the work that writes it is to be complete.
template <class T>
std::vector<T> on_host(const std::byte* device, std::size_t count) {
  std::vector<T> values(count);
  check(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
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
