#pragma once
/// @file
/// launch::PerNode: the process that the user starts becomes the launcher of this node's workers.

#include "dtrain/core/config.hpp"
#include "dtrain/launch/launcher.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// `./train --nproc-per-node=4`: starts four of its own program, each a rank, and ends with them. Started once on each
/// of several nodes (--nnodes, --node-rank, --master-addr), it is one job. The store runs in the launcher (of node 0),
/// so it survives rank 0. With --in-process there is no launcher: the process itself is rank 0 of 1.
struct PerNode {
  static constexpr bool returns_into_user_code = false;

  static constexpr const char* name() noexcept { return "launch::PerNode"; }

  /// In a worker, its RankProcess; in the launcher, the first failing worker's exit code (128 + signal), 0, or 2 with a
  /// sentence on stderr where nothing could be started. To be main's first statement.
  /// Blocking: in the launcher, until all workers have ended. Threads: the main thread, of a process that has no other.
  /// @param backend counts the devices that --nproc-per-node=auto starts a worker for each of (else it is the cores),
  /// and says how many workers are too many
  static StartResult start(int argc, char** argv, const BackendFacts& backend = {});
};

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS
#include "dtrain/launch/per_node_definitions.hpp"
#endif
