#pragma once
/// @file
/// What every emulated call passes through: faults, the last error, the devices that there are.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace emulation {

constexpr int most_devices = 16;

/// Whether break_device has been called for it.
bool is_broken(int device) noexcept;

/// cudaSuccess, or why the call of that name is not done: a fault that a test asked for, a call from a host function
/// (which may make none), a process forked after its parent used CUDA, a broken device. A hit of a fault for NCCL comes
/// as that number.
int admitted(const char* function) noexcept;

/// Keeps an error for cudaGetLastError and returns it.
cudaError_t remembered(cudaError_t error) noexcept;

inline thread_local bool runs_runtime = false;

/// While it lives, the calling thread runs the runtime's own code: see in_runtime(). Every call that a step makes has
/// one.
class RuntimeScope {
 public:
  /// @param is_inside false: the runtime calls a function of the program
  explicit RuntimeScope(bool is_inside = true) noexcept : before_(std::exchange(runs_runtime, is_inside)) {}
  RuntimeScope(const RuntimeScope&) = delete;
  RuntimeScope& operator=(const RuntimeScope&) = delete;
  ~RuntimeScope() { runs_runtime = before_; }

 private:
  const bool before_;
};

template <class Body>
cudaError_t call(const char* function, Body body) noexcept {
  const RuntimeScope scope;
  const auto refused = static_cast<cudaError_t>(admitted(function));
  return remembered(refused != cudaSuccess ? refused : body());
}

/// The device of a stream or event; the calling thread's for a default stream or null.
int handle_device(cudaStream_t stream) noexcept;
int handle_device(cudaEvent_t event) noexcept;

/// A call that needs the device of the stream or event, which may be another than the calling thread's.
template <class Handle, class Body>
cudaError_t call(const char* function, Handle handle, Body body) noexcept {
  return call(function, [&] {
    const int device = handle_device(handle);
    if (is_broken(device)) return cudaErrorIllegalAddress;
    const cudaError_t result = body();
    return is_broken(device) ? cudaErrorIllegalAddress : result;  // since then
  });
}

/// The devices that the calling process sees.
int device_count() noexcept;
/// The number that a device has on the machine, whatever CUDA_VISIBLE_DEVICES is; its UUID and PCI bus id are made of
/// it.
int physical_device(int device) noexcept;
/// Of the calling thread.
int current_device() noexcept;
void set_current_device(int device) noexcept;
/// The device has a context from now on, as cudaSetDevice and whatever allocates on it give it one.
void make_context(int device) noexcept;

bool has_stream_memory_operations() noexcept;

/// Counters of events: whether this wait or record is one that a test wants to be lost.
bool wait_is_ignored() noexcept;
bool record_is_ignored() noexcept;
void count_host_wait() noexcept;
void count_device_wait() noexcept;
void count_bytes_to_host(std::size_t bytes) noexcept;

/// Set faults and settings back.
void reset_devices() noexcept;
void reset_nccl() noexcept;
void reset_network() noexcept;
void forget_mistakes_with_memory() noexcept;

}  // namespace emulation
