#pragma once
/// @file
/// What NCCL reads from the environment, before its first call.

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/identity/environment/environment_snapshot.hpp"
#include "dtrain/identity/environment/variables.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// What is wrong with the variables; null where nothing is.
inline const char* warning_about(const identity::Environment& environment) {
  return identity::Variables(environment).text("NCCL_COMM_BLOCKING") != "1"
             ? nullptr
             : "NCCL_COMM_BLOCKING=1 makes NCCL block in its calls, where no timeout ends it; unset it, or set it only "
               "to measure";
}

/// Makes the order of the program's calls the order on the device, for all communicators of it (from NCCL 2.26 on),
/// unless the user has set NCCL_LAUNCH_ORDER_IMPLICIT. Says so where a variable takes away what dtrain promises.
/// Threads: none reads the environment meanwhile. @throws Error where the environment takes no more
inline void prepare_environment() {
  if (::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0) != 0) {
    throw Error(std::error_code(errno, std::generic_category()), "setting NCCL_LAUNCH_ORDER_IMPLICIT");
  }
  if (const char* const warning = warning_about(identity::snapshot_environment())) {
    log(LogLevel::warning, warning);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
