#pragma once
/// @file
/// Process setup of a launcher, which is rejected where MPI or CUDA is in use: subreaper of its workers' children.

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>  // __GLIBC__
#include <sys/prctl.h>
#include <unistd.h>

#include <optional>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/process_tree.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

// In glibc before 2.34, dlsym() is in a separate library, which a program would have to be linked with.
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

/// Whether a device has this process's primary context, which takes memory there. Counting devices creates no context.
/// Initialises nothing: the function calls a driver that is loaded already. Source: CUDA Driver API,
/// cuDevicePrimaryCtxGetState.
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
  static_cast<void>(::dlclose(driver));  // the driver stays loaded: closing the handle only decrements a count
  return has_context;
}

#endif

}  // namespace detail

/// A launcher starts each rank as a separate process, so that state of MPI and CUDA in the launcher serves no rank.
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

/// Opens /dev/null as each of stdin, stdout and stderr that is closed. Otherwise a pipe or socket could get its number,
/// and then receive the program's output.
inline void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != descriptor) {
      throw_errno("opening /dev/null in the place of a closed standard descriptor");
    }
  }
}

/// Installs a handler for SIGXFSZ: a launcher's file at its limit (ulimit -f) is then a write error and does not end
/// the job. Workers get the system's default, because exec resets handlers.
inline void survive_file_size_limit() {
  struct sigaction present {};
  if (::sigaction(SIGXFSZ, nullptr, &present) != 0) {
    throw_errno("asking what SIGXFSZ does");
  }
  if (present.sa_handler == SIG_DFL) {
    present.sa_handler = [](int) {};
    present.sa_flags = SA_RESTART;
    if (::sigaction(SIGXFSZ, &present, nullptr) != 0) {
      throw_errno("handling SIGXFSZ");
    }
  }
}

/// Makes this process the parent of workers' orphans, so that it can reap them. If the system denies it, a process that
/// outlives its worker becomes a child of init, which reaps it; the process is still killed with the worker's group.
inline void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    log(LogLevel::info, errno_error("becoming the subreaper of what the workers leave behind").what());
  }
}

/// The system will kill this process when its parent ends. The parent is the wrapper, which ends with the launcher.
/// Threads: any. A thread of a library that reads the environment meanwhile may miss a variable: glibc's unsetenv moves
/// other variables, and frees nothing. @throws Error (usage) if no ancestor is the launcher
/// @param is_elastic the launcher knows this worker by its process
inline void end_with_launcher(pid_t launcher, bool is_elastic) {
  if (::unsetenv(wrapped_variable) != 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    throw_errno("making this worker end with the command of --wrap");
  }
  const std::optional<pid_t> ancestor = ancestor_like(launcher);
  if (!ancestor) {
    throw_error(Errc::usage,
                "process {}, the launcher of this worker, is none of its ancestors: it has ended, or the command of "
                "--wrap does not stay the parent of what it starts; wrap in one that does",
                {launcher});
  }
  if (is_elastic && *ancestor != launcher) {
    throw_error(Errc::usage,
                "the command of --wrap runs this worker in a process namespace, where it has another number than its "
                "launcher knows; wrap an elastic job in a command that makes none");
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
