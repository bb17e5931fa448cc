#pragma once
/// @file
/// ElasticJob: the parts of a launcher with which an elastic job runs. NodeLauncher fills it for run_elastic_job().

#include <sys/types.h>

#include <functional>

#include "dtrain/async/events.hpp"
#include "dtrain/launch/configuration/node_launcher_options.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/output/console.hpp"
#include "dtrain/launch/supervise/signal_forwarder.hpp"
#include "dtrain/launch/supervise/workers.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Lifetime: the references outlive the job.
struct ElasticJob {
  async::EventLoop& loop;
  async::AutoResetEvent& changed;
  const SignalForwarder& forwarder;
  Workers& workers;
  rendezvous::StoreServer& store;
  Console& console;
  const rendezvous::HostIdentity& host;
  const NodeLauncherOptions& options;
  const NodePlan& plan;
  std::function<pid_t(int slot)> start;  ///< starts a worker
};

}  // namespace DTRAIN_NAMESPACE::launch
