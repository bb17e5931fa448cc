#pragma once
/// @file
/// Initialised runtimes: whether MPI or CUDA was used in this process before it became a launcher.

#include <dlfcn.h>
#include <stdlib.h>  // __GLIBC__

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

// In glibc before 2.34, dlsym() is in a library of its own, which a program would have to be linked with.
#if defined(__GLIBC__) && __GLIBC__ * 100 + __GLIBC_MINOR__ < 234
inline bool mpi_says(const char*) noexcept {
  return false;
}
inline bool has_cuda_context() noexcept {
  return false;
}
#else

/// Calls `int NAME(int*)` of MPI. @returns false if the process has no such function (it has no MPI, or a static one)
inline bool mpi_says(const char* name) noexcept {
  using Question = int (*)(int*);
  const auto ask = reinterpret_cast<Question>(::dlsym(RTLD_DEFAULT, name));
  int answer = 0;
  return ask != nullptr && ask(&answer) == 0 && answer != 0;
}

/// Whether a device has this process's primary context, which takes memory there. Counting devices creates none.
/// Initialises nothing: it asks a driver that is loaded already. Source: CUDA Driver API, cuDevicePrimaryCtxGetState.
inline bool has_cuda_context() noexcept {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) {
    return false;
  }
  const auto count_devices = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount"));
  const auto context_state =
      reinterpret_cast<int (*)(int, unsigned*, int*)>(::dlsym(driver, "cuDevicePrimaryCtxGetState"));
  int devices = 0;
  bool has_context = false;
  if (count_devices != nullptr && context_state != nullptr && count_devices(&devices) == 0) {
    for (int device = 0; device < devices && !has_context; ++device) {
      unsigned flags = 0;
      int active = 0;
      has_context = context_state(device, &flags, &active) == 0 && active != 0;
    }
  }
  static_cast<void>(::dlclose(driver));  // it stays loaded: this handle only counted
  return has_context;
}

#endif

}  // namespace detail

/// A launcher starts each rank as a process of its own, so what MPI and CUDA hold in the launcher serves no rank.
/// Threads that other libraries have started are no obstacle.
/// @throws Error (usage) if MPI is initialised and not finalised, or CUDA has a context
inline void refuse_initialised_runtimes() {
  if (detail::mpi_says("MPI_Initialized") && !detail::mpi_says("MPI_Finalized")) {
    throw_error(Errc::usage,
                "MPI is initialised in this process already, but launch::PerNode starts each rank as a process of its "
                "own; make dtrain::run the first statement of main, before MPI_Init, or use launch::PerProcess where "
                "mpirun starts the ranks");
  }
  if (detail::has_cuda_context()) {
    throw_error(Errc::usage,
                "CUDA has a context in this process already, but launch::PerNode starts each rank as a process of its "
                "own, and the context would take device memory from the ranks; make dtrain::run the first statement "
                "of main, before anything that uses CUDA");
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
