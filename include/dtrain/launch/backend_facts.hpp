#pragma once
/// @file
/// BackendFacts: what a launcher knows of a policy's backend before it starts workers. run() makes one from the policy;
/// PerNode counts devices and checks the launcher's options by it.

#include <string_view>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::async {
template <class T>
class Task;
}

namespace DTRAIN_NAMESPACE::launch {

struct ElasticJob;
struct JobResult;

/// Counts the devices of the kind that a policy's backend computes on; null if that is the host.
using VisibleDevices = int (*)();

/// Starts the workers of an elastic job and replaces those that fail, until none runs. @returns the job's result
/// (launch/supervise/elastic_supervisor.hpp)
async::Task<JobResult> run_elastic_job(ElasticJob job);
/// A pointer to run_elastic_job, so that programs without an elastic job have no code of it.
using RunElasticJob = async::Task<JobResult> (*)(ElasticJob job);

/// Properties of a policy's backend that a launcher uses before it starts workers.
struct BackendFacts {
  std::string_view name{};  ///< for messages
  VisibleDevices visible_devices = nullptr;
  int most_ranks = 0;                   ///< most ranks on one host; 0: no limit
  RunElasticJob run_elastic = nullptr;  ///< null: the program's body takes a group, not an Elastic
};

}  // namespace DTRAIN_NAMESPACE::launch
