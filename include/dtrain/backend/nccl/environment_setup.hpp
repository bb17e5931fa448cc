#pragma once
/// @file
/// NCCL's environment variables, set and checked before its first call.

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/identity/variables.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// A warning about the variables; null if they are in order.
inline const char* warning_about(const identity::Environment& environment) {
  return identity::Variables(environment).text("NCCL_COMM_BLOCKING") != "1"
             ? nullptr
             : "NCCL_COMM_BLOCKING=1 makes NCCL block in its calls, where no timeout ends it; unset it, set it only "
               "to measure, or set NcclOptions::blocking instead";
}

/// Whether NCCL itself orders the operations of a device's channels: see prepare_environment(), which was called, and
/// config_of(). Threads: nobody changes the environment meanwhile.
inline bool has_implicit_launch_order() noexcept {
  const char* const chosen = chosen_launch_order();
  return library_version() >= first_that_orders &&
         (chosen != nullptr ? std::strtoll(chosen, nullptr, 0) != 0 : config_has_launch_order());  // as NCCL reads it
}

/// Sets NCCL_LAUNCH_ORDER_IMPLICIT unless the user has: the device then runs operations in the order of the program's
/// calls, for all communicators of the process (from NCCL 2.26 on). Leaves it alone where each communicator's
/// configuration has that order (2.31): it would change those of others, such as PyTorch's, too. Logs a warning if a
/// variable breaks a guarantee of dtrain.
/// NCCL reads the variable once in a process: call this before the first collective of anybody over NCCL.
/// Threads: no other thread reads the environment meanwhile. @throws Error if the variable cannot be set
inline void prepare_environment() {
  const bool is_unset = chosen_launch_order() == nullptr;  // or empty, which NCCL takes for its default
  if (is_unset && !config_has_launch_order() && ::setenv(launch_order_variable, "1", 1) != 0) {
    throw Error(std::error_code(errno, std::generic_category()), "setting NCCL_LAUNCH_ORDER_IMPLICIT");
  }
  if (const char* const warning = warning_about(identity::snapshot_environment())) {
    log(LogLevel::warning, warning);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
