#pragma once
/// @file
/// Stream memory operations of the CUDA driver.

#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/driver_function.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

namespace driver {

using WaitValue32 = int (*)(cudaStream_t stream, unsigned long long address, std::uint32_t value, unsigned int flags);

inline constexpr int success = 0;
inline constexpr int not_supported = 801;
inline constexpr unsigned int wait_until_at_least = 0;  ///< CU_STREAM_WAIT_VALUE_GEQ: cyclic
inline constexpr unsigned int version = 12000;          ///< its entry point needs no driver option

}  // namespace driver

/// Enqueued: later work of `stream` starts when `*word`, in pinned memory, has reached or passed `value`.
/// @returns false if the driver or the device cannot do that; nothing is enqueued then
/// @throws Error (cuda)
inline bool wait_for_value(cudaStream_t stream, const std::uint32_t* word, std::uint32_t value) {
  static const auto wait =
      reinterpret_cast<driver::WaitValue32>(driver_function("cuStreamWaitValue32", driver::version));
  if (wait == nullptr) {
    return false;
  }
  // Pinned memory has one address, on the host and on every device.
  const int result = wait(stream, reinterpret_cast<std::uintptr_t>(word), value, driver::wait_until_at_least);
  if (result == driver::not_supported) {
    return false;
  }
  check(static_cast<cudaError_t>(result), "cuStreamWaitValue32");  // the numbers are the same
  return true;
}

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
