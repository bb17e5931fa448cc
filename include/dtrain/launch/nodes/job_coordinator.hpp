#pragma once
/// @file
/// Job coordinator: interface between one node's launcher and those of the other nodes.

#include <optional>
#include <string>

#include "dtrain/async/task/task.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/launch/nodes/job_result.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Which ranks of the job this node's workers are, and where the job's store is.
struct RankAssignment {
  int node_rank = 0;
  int node_count = 1;
  int first_rank = 0;
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  std::string secret;       ///< made for this job; empty where the workers have it already
  std::string description;  ///< of a job of several nodes, on node 0: "4 ranks on 2 nodes (3 on node 0, ..."
};

/// One launcher alone (SingleNodeCoordinator), or with those of other nodes (MultiNodeCoordinator). Changes set the
/// event it was made with. Errors: assign_ranks() and begin() throw JobFailed where another launcher is lost; to
/// conclude() that is a result. Threads: the loop's.
class JobCoordinator {
 public:
  JobCoordinator() = default;
  JobCoordinator(const JobCoordinator&) = delete;
  JobCoordinator& operator=(const JobCoordinator&) = delete;
  virtual ~JobCoordinator() = default;

  /// Finds the other launchers and agrees with them on ranks. Before everything else.
  virtual async::Task<RankAssignment> assign_ranks() = 0;

  /// Once it has returned, ranks of this attempt can join. Attempts count from 0.
  virtual async::Task<void> begin(int attempt) = 0;

  /// The job's first cause in this attempt; nothing while the ranks are well.
  virtual std::optional<Cause> first_cause() const = 0;

  /// Whether a worker on any node has failed, or another launcher is lost: the others are to stop.
  virtual bool failing() const = 0;

  /// Whether a rank of this node has joined, as far as is known here: from then on the store notices its silence.
  virtual bool has_joined(int rank) const = 0;

  /// Whether a rank of this node, whose process has just ended, had said before that it was done.
  virtual async::Task<bool> has_left(int rank) = 0;

  /// A worker of this node has failed.
  /// @param secondary it failed because of what the ranks know already; otherwise they are notified, unless it had left
  virtual void on_worker_failed(const Cause& loss, bool secondary) = 0;

  /// The signal that this launcher was sent to end the job, and how many of those there have been.
  virtual void stop(int signal, int count) = 0;

  /// No worker of this node runs any more. @returns the result once that is so on every node
  virtual async::Task<JobResult> conclude(NodeEnd end) = 0;

  /// Nothing comes after this attempt.
  virtual async::Task<void> leave() = 0;

  /// This launcher cannot go on; the others are notified of the reason. Instead of leave().
  virtual async::Task<void> abort(std::string reason) = 0;
};

}  // namespace DTRAIN_NAMESPACE::launch
