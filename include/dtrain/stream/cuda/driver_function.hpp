#pragma once
/// @file
/// driver_function(): functions of the CUDA driver, looked up at run time.

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Looks up a driver function through the runtime, so that a program links no libcuda. The calling code spells out the
/// function's type, because <cuda.h> is for programs that use the driver themselves.
/// @param version the CUDA version that introduced the function in this form
/// @returns null if the driver does not have it
inline void* driver_function(const char* name, [[maybe_unused]] unsigned int version) noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
  return quiet(code) && status == cudaDriverEntryPointSuccess ? found : nullptr;
}

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
