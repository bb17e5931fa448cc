#pragma once
/// @file
/// launch::PerProcess: somebody else starts one process for each rank; the environment says which one this is.

#include <exception>

#include "dtrain/core/exit_codes.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/launch/worker.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// For torchrun, mpirun, srun, Kubernetes, or a script that sets RANK and WORLD_SIZE. Rank 0's process hosts the store.
struct PerProcess {
  static constexpr bool returns_into_user_code = true;

  static constexpr const char* name() noexcept { return "launch::PerProcess"; }

  /// A Worker, or exit code 2 with a sentence on stderr. Blocking: no.
  static Start start(int argc, char** argv) {
    try {
      JoinOptions options;
      options.arguments = std::vector<std::string>(argv, argv + argc);
      return Start(worker_of(std::move(options)));
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
      return Start(exit_code_usage);
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::launch
