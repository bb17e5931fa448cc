#pragma once
/// @file
/// The driver's stream memory operations, looked up at run time.

#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// The driver's functions come from the runtime, so that a program links no libcuda. Their types are written out here:
/// <cuda.h> is for programs that use the driver themselves.
namespace driver {

using WaitValue32 = int (*)(cudaStream_t stream, unsigned long long address, std::uint32_t value, unsigned int flags);

inline constexpr int success = 0;
inline constexpr int not_supported = 801;
inline constexpr unsigned int wait_until_at_least = 0;  ///< CU_STREAM_WAIT_VALUE_GEQ: cyclic
inline constexpr unsigned int version = 12000;          ///< the one that has no driver option in its way

}  // namespace driver

namespace detail {

/// Null where the driver does not have it.
inline driver::WaitValue32 find_wait_value() noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, driver::version, cudaEnableDefault, &status);
#else
  const cudaError_t code = cudaGetDriverEntryPoint("cuStreamWaitValue32", &found, cudaEnableDefault, &status);
#endif
  const bool there = quiet(code) && status == cudaDriverEntryPointSuccess;
  return there ? reinterpret_cast<driver::WaitValue32>(found) : nullptr;
}

}  // namespace detail

/// Enqueued: work of `stream` behind it starts when `*word`, in pinned memory, has come to `value` or gone beyond.
/// @returns false where the driver or the device cannot do that; nothing is enqueued then
/// @throws Error (cuda)
inline bool wait_for_value(cudaStream_t stream, const std::uint32_t* word, std::uint32_t value) {
  static const driver::WaitValue32 wait = detail::find_wait_value();
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
