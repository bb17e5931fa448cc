#pragma once
/// @file
/// Job coordinator: interface between one node's launcher and the launchers of the other nodes.

#include <optional>
#include <string>

#include "dtrain/async/task/task.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/launch/nodes/job_result.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The ranks of this node's workers, and the address of the job's store.
struct RankAssignment {
  int node_rank = 0;
  int node_count = 1;
  int first_rank = 0;
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  std::string secret;       ///< generated for this job; empty if the workers have one already
  std::string description;  ///< for several nodes, on node 0: "4 ranks on 2 nodes (3 on node 0, ..."
};

/// Implementations: SingleNodeCoordinator and MultiNodeCoordinator. A change sets the event of the constructor.
/// Errors: if another launcher is lost, assign_ranks() and begin() throw JobFailed, and conclude() returns a result.
/// Threads: the loop's.
class JobCoordinator {
 public:
  JobCoordinator() = default;
  JobCoordinator(const JobCoordinator&) = delete;
  JobCoordinator& operator=(const JobCoordinator&) = delete;
  virtual ~JobCoordinator() = default;

  /// Joins the other launchers and agrees with them on ranks. @pre no other function was called
  virtual async::Task<RankAssignment> assign_ranks() = 0;

  /// Begins an attempt: after it, ranks of this attempt can join. Attempts count from 0.
  virtual async::Task<void> begin(int attempt) = 0;

  /// The job's first cause in this attempt; nullopt before a failure.
  virtual std::optional<Cause> first_cause() const = 0;

  /// Whether a worker on any node has failed or another launcher is lost, so that this node's workers must stop.
  virtual bool failing() const = 0;

  /// Whether a rank of this node is known to have joined. From then on the store detects that it is lost.
  virtual bool has_joined(int rank) const = 0;

  /// Whether a rank of this node had left the job before its process ended. @pre the process has just ended
  virtual async::Task<bool> has_left(int rank) = 0;

  /// A worker of this node has failed.
  /// @param secondary the cause is a failure that the ranks know already. If false, the coordinator notifies the ranks,
  /// unless the worker had left
  virtual void on_worker_failed(const Cause& loss, bool secondary) = 0;

  /// This launcher received SIGINT or SIGTERM, as its `count`-th stop request.
  virtual void stop(int signal, int count) = 0;

  /// No worker of this node runs any more. Waits until that is so on every node. @returns the job's result
  virtual async::Task<JobResult> conclude(NodeEnd end) = 0;

  /// This was the last attempt.
  virtual async::Task<void> leave() = 0;

  /// This launcher failed; notifies the other launchers of the reason. Call it instead of leave().
  virtual async::Task<void> abort(std::string reason) = 0;
};

}  // namespace DTRAIN_NAMESPACE::launch
