#pragma once
/// @file
/// check(), cuda_error(): errors of CUDA's runtime as Error. driver_function(): a function of CUDA's driver, without
/// linking it.

#include <string>
#include <system_error>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

#if DTRAIN_WITH_CUDA

#include <cuda_runtime_api.h>

static_assert(CUDART_VERSION >= 12000, "dtrain: compile with the toolkit of CUDA 12 or newer");

namespace DTRAIN_NAMESPACE::stream::cuda {

/// The category of the runtime's error codes, named "cuda".
inline const std::error_category& cuda_category() noexcept {
  struct Category final : std::error_category {
    const char* name() const noexcept override { return "cuda"; }
    std::string message(int code) const override {
      const char* const text = cudaGetErrorString(static_cast<cudaError_t>(code));
      return text != nullptr ? text : "CUDA error " + std::to_string(code);
    }
  };
  static const Category category;
  return category;
}

/// Whether the call succeeded. Clears the thread's "last error", which the program would attribute to its own kernels.
inline bool quiet(cudaError_t code) noexcept {
  if (code == cudaSuccess) {
    return true;
  }
  if (code != cudaErrorCudartUnloading) {  // nothing more may be called at the end of a process
    static_cast<void>(cudaGetLastError());
  }
  return false;
}

/// Deleter of a std::unique_ptr: calls `release`, a function of the runtime.
template <auto release>
struct ReleasedBy {
  template <class T>
  void operator()(T* owned) const noexcept {
    static_cast<void>(quiet(release(owned)));
  }
};

/// "cudaMalloc on device 0: cudaErrorMemoryAllocation, out of memory; REMEDY". Errors of kernels are reported by later
/// calls.
/// @param call the function called, or the action
inline Error cuda_error(cudaError_t code, const std::string& call, const std::string& remedy = {},
                        SourceLocation where = SourceLocation::current()) {
  const char* const name = cudaGetErrorName(code);
  int device = -1;
  const bool knows_device = quiet(cudaGetDevice(&device));
  static_cast<void>(quiet(code));
  const std::string place = knows_device ? " on device " + std::to_string(device) : "";
  return {std::error_code(static_cast<int>(code), cuda_category()),
          format_text("{}{}: {}, {}{}{}",
                      {call, place, name != nullptr ? name : "unknown error",
                       cuda_category().message(static_cast<int>(code)), remedy.empty() ? "" : "; ", remedy}),
          where};
}

[[noreturn]] DTRAIN_NOT_INLINED inline void throw_cuda_error(cudaError_t code, const char* call, SourceLocation where) {
  throw cuda_error(code, call, {}, where);
}

/// @throws Error (of the category cuda) unless `code` is cudaSuccess
inline void check(cudaError_t code, const char* call, SourceLocation where = SourceLocation::current()) {
  if (code != cudaSuccess) {
    throw_cuda_error(code, call, where);
  }
}

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
