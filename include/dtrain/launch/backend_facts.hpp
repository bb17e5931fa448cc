#pragma once
/// @file
/// BackendFacts: properties of a policy's backend that its launcher needs before it starts workers. run_elastic_job():
/// starts those of an elastic job.

#include <string_view>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::async {
template <class T>
class Task;
}

namespace DTRAIN_NAMESPACE::launch {

class Attempt;
struct JobResult;
struct NodeLauncherOptions;

/// Counts the devices of the kind that a policy's backend computes on; null if that is the host.
using VisibleDevices = int (*)();

/// Starts the workers of an elastic job and replaces those that fail, until none runs. @returns the job's result
/// (launch/elastic_supervisor.hpp)
template <class = void>
async::Task<JobResult> run_elastic_job(Attempt& attempt, const NodeLauncherOptions& options);
/// A pointer to a template's instance, so that programs without an elastic job compile nothing of it.
using RunElasticJob = async::Task<JobResult> (*)(Attempt& attempt, const NodeLauncherOptions& options);

/// Properties of a policy's backend that a launcher uses before it starts workers.
struct BackendFacts {
  std::string_view name{};  ///< its name in messages
  VisibleDevices visible_devices = nullptr;
  int most_ranks = 0;                   ///< most ranks on one host; 0: no limit
  bool needs_process_per_rank = false;  ///< its ranks are processes of another launcher, as those of MPI are
  RunElasticJob run_elastic = nullptr;  ///< null: the program's body takes a group, not an Elastic
};

}  // namespace DTRAIN_NAMESPACE::launch
