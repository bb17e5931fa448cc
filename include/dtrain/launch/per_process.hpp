#pragma once
/// @file
/// launch::PerProcess: launcher of a Policy: torchrun, mpirun, srun or another starts and identifies each rank.

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/launch/rank_process.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The program is started once for each rank: by torchrun, mpirun, srun, Kubernetes, or a script that sets RANK and
/// WORLD_SIZE. Rank 0's process hosts the store.
/// @ingroup launchers
struct PerProcess {
  static constexpr bool returns_into_user_code = true;

  static constexpr const char* name() noexcept { return "launch::PerProcess"; }

  /// A RankProcess, or exit code 2 with a sentence on stderr. Blocking: no.
  /// @param takes Takes::elastic: the process may be a worker of an elastic job (rank_process_of)
  static StartResult start(int argc, char** argv, Takes takes = Takes::group);
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED StartResult PerProcess::start(int argc, char** argv, Takes takes) {
  try {
    JoinOptions options;
    options.arguments = std::vector<std::string>(argv, argv + argc);
    return StartResult(rank_process_of(std::move(options), takes));
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
    return StartResult(exit_code_usage);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::launch
