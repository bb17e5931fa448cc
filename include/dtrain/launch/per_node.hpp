#pragma once
/// @file
/// launch::PerNode: the process that the user starts becomes the launcher of this node's workers.

#include "dtrain/core/config.hpp"
#include "dtrain/launch/launcher.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// `./train --nproc-per-node=4` starts its own program four times, each as a rank, and ends when they have ended. For a
/// job on several nodes, the user starts it once on each (--nnodes, --node-rank, --master-addr). The store runs in the
/// launcher of node 0, so it outlives rank 0. With --in-process there is no launcher: the process is rank 0 of 1.
struct PerNode {
  static constexpr bool returns_into_user_code = false;

  static constexpr const char* name() noexcept { return "launch::PerNode"; }

  /// @returns in a worker, its RankProcess; in the launcher, an exit code:
  ///   - 0, or the code of the worker that failed first (128 + signal number for a signal)
  ///   - 2, with a sentence on stderr, if no worker could be started
  ///   - 2 as well if MPI is initialised in this process, or CUDA has a context in it
  /// @pre It is main's first statement. Threads: usually the main thread. Other threads may run, such as those that a
  /// library starts when it is loaded (OpenBLAS).
  /// Blocking: in the launcher, until all workers have ended.
  /// @param backend its devices, or the cores, are counted for --nproc-per-node=auto; it limits the number of workers
  static StartResult start(int argc, char** argv, const BackendFacts& backend = {});
};

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS
#include "dtrain/launch/per_node_definitions.hpp"
#endif
