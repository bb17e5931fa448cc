#pragma once
/// @file
/// NodeLauncherOptions of a NodeLauncher: program, workers, nodes and settings, from flags and environment.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/identity_error.hpp"
#include "dtrain/identity/job_name.hpp"
#include "dtrain/identity/node_identity.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/backend_facts.hpp"
#include "dtrain/launch/configuration/flags.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/shutdown_schedule.hpp"
#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The program that the launcher starts `workers` times, the job's nodes, and the launcher's settings.
struct NodeLauncherOptions {
  WorkerProgram program;
  identity::NodeIdentity node;
  std::string node_source;  ///< flag or variables with the number of nodes: "RANK='0', WORLD_SIZE='2'"
  int workers = 1;
  int cores = 1;
  Binding binding = Binding::automatic;
  int max_restarts = 0;
  int min_ranks = 0;                    ///< least ranks of an elastic job; 0: the job is not elastic
  RunElasticJob run_elastic = nullptr;  ///< the launcher's part if min_ranks is set
  std::chrono::nanoseconds join_timeout = default_timeout;
  std::chrono::nanoseconds liveness = default_liveness;
  double straggler_factor = rendezvous::Limits().straggler_factor;
  std::chrono::nanoseconds stop_grace = ShutdownSchedule::default_stop_grace;
  ShutdownTimeouts shutdown_timeouts{};
  std::optional<std::string> host_id;
  std::string job;                           ///< its name, which launchers of several nodes compare; may be empty
  std::optional<rendezvous::Secret> secret;  ///< shared by the launchers of several nodes
  std::optional<std::string> interface;      ///< where the store of several nodes listens: a name or an address

  /// An elastic job on several hosts, whose launchers do not join each other.
  bool is_elastic_on_hosts() const noexcept { return min_ranks != 0 && node.node_count > 1; }
};

namespace detail {

inline constexpr int most_workers = 4096;

/// Number of workers by --nproc-per-node; 1 without the flag. @throws Error (usage); errors of visible_devices
inline int worker_count(const std::optional<std::string>& given, int cores, VisibleDevices visible_devices) {
  if (!given) {
    return 1;
  }
  if (*given == "auto" && visible_devices == nullptr) {
    return cores;
  }
  if (*given == "auto") {
    const int devices = visible_devices();
    if (devices < 1) {
      throw_error(Errc::usage,
                  "--nproc-per-node=auto starts a worker for each visible GPU, and there is none; look at nvidia-smi "
                  "and CUDA_VISIBLE_DEVICES");
    }
    return devices;
  }
  const int count = identity::parse_integer(*given).value_or(0);
  if (count < 1 || count > most_workers) {
    throw_error(Errc::usage, "{} is not a number of workers from 1 to {}, or auto",
                {identity::quoted("--nproc-per-node", *given), most_workers});
  }
  return count;
}

/// Flag or variables that state the number of nodes, for messages.
inline std::string node_source(const identity::NodeFlags& flags, const identity::Environment& environment,
                               const identity::NodeIdentity& node) {
  if (flags.node_count) {
    return identity::quoted("--nnodes", *flags.node_count);
  }
  const identity::Variables variables(environment);
  const bool torch = node.launcher == "torch" || node.launcher == "k8s";
  const std::string stated =
      node.launcher == "node"
          ? variables.stated({"DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT", "NODE_RANK", "AZUREML_NODE_COUNT", "NNODES"})
      : node.launcher == "pet" ? variables.stated({"PET_NODE_RANK", "PET_NNODES"})
      : torch                  ? variables.stated({"RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX"})
              : variables.stated({"DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                  "PMI_RANK", "PMI_SIZE", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "TF_CONFIG",
                                  "CLUSTER_SPEC", "SM_HOSTS"});
  return stated.empty() ? format_text("the environment of {}", {node.launcher}) : stated;
}

/// This node's identity. The launcher reads RANK and other variables as the node's. If they are incomplete, the error
/// also names the flag that ignores them. @throws Error (identity, usage)
inline identity::NodeIdentity node_of(const identity::Environment& environment, const identity::NodeFlags& flags) {
  using identity::IdentityErrc;
  try {
    return identity::node_identity(environment, flags);
  } catch (const identity::IdentityError& error) {
    const IdentityErrc reason = error.reason();
    const bool stray = reason == IdentityErrc::no_rank || reason == IdentityErrc::no_world_size ||
                       reason == IdentityErrc::no_master_addr || reason == IdentityErrc::conflict_rank ||
                       reason == IdentityErrc::rank_out_of_range || reason == IdentityErrc::half_identity;
    if (!stray || flags.node_count) {
      throw;
    }
    const std::string stated =
        identity::Variables(environment).stated({"RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "PET_NNODES"});
    throw_error(Errc::identity,
                "{} (launch::PerNode reads {} for the whole node; if there is only this node, give --nnodes=1)",
                {error.what(), stated.empty() ? "this environment" : stated});
  }
}

/// The secret that the launchers of several nodes share; nullopt for one node. @throws Error (usage) if it is not set
inline std::optional<rendezvous::Secret> secret_of_nodes(const identity::Variables& variables,
                                                         const NodeLauncherOptions& options) {
  if (options.node.node_count == 1) {
    return std::nullopt;
  }
  std::optional<rendezvous::Secret> secret = secret_setting(variables);
  if (!secret) {
    throw_error(Errc::usage,
                "this is node {} of {} (from {}), and the launchers of several nodes need a secret that they share: "
                "make one with DTRAIN_SECRET=$(openssl rand -hex 32) and start every node with it, or put it into a "
                "file that DTRAIN_SECRET_FILE names; if there is only this node, give --nnodes=1; if this program is "
                "started once for each rank, leave --nproc-per-node out, with launch::Any in its policy",
                {options.node.node_rank, options.node.node_count, options.node_source});
  }
  return secret;
}

/// The least number of ranks of an elastic program's job; 0: the job is not elastic.
/// @throws Error (usage) for an elastic job of too many workers
inline int least_ranks(int given, const NodeLauncherOptions& options) {
  const int nodes = options.node.node_count;
  if (given == 0 && options.node.least_nodes == 0) return 0;
  if (std::int64_t{options.workers} * nodes > rendezvous::max_world_size) {
    throw_error(Errc::usage, "--nproc-per-node={} on {} nodes are more workers than the {} that a job may have",
                {options.workers, nodes, rendezvous::max_world_size});
  }
  return given != 0 ? given : options.node.least_nodes * options.workers;
}

/// @throws Error (usage) for several nodes, if the backend joins the ranks of one host
inline void require_one_host(const NodeLauncherOptions& options, const BackendFacts& backend) {
  if (backend.most_ranks != 0 && options.node.node_count > 1) {
    throw_error(
        Errc::usage,
        "backend::{} joins the ranks of one host, and this job has {}{} nodes (from {}); if all is one host, "
        "start one launcher there, with --nnodes=1 and all workers (--nproc-per-node); for several hosts, use "
        "backend::Gloo or backend::Nccl",
        {backend.name, options.node.least_nodes == 0 ? "" : "up to ", options.node.node_count, options.node_source});
  }
}

}  // namespace detail

/// Checks the number of workers before any is started, so that the error is printed once and not by each worker.
/// @throws Error (usage) if the backend does not support so many ranks on one host
inline void check_most_workers(int workers, const BackendFacts& backend) {
  if (backend.most_ranks != 0 && workers > backend.most_ranks) {
    throw_error(Errc::usage,
                "backend::{} joins at most {} ranks, not {}; use backend::Gloo, or start fewer workers "
                "(--nproc-per-node)",
                {backend.name, backend.most_ranks, workers});
  }
}

/// @throws Error (usage) for an elastic job that is not possible
inline void check_min_ranks(NodeLauncherOptions& options, const BackendFacts& backend) {
  options.run_elastic = backend.run_elastic;
  if (options.min_ranks == 0) {
    return;
  }
  if (backend.run_elastic == nullptr) {
    throw_error(Errc::usage,
                "--min-ranks={} makes the job elastic, and this program is not: its body takes a ProcessGroup and not "
                "a dtrain::Elastic; leave the flag out",
                {options.min_ranks});
  }
  const int nodes = options.node.node_count;
  if (options.min_ranks > std::int64_t{options.workers} * nodes) {
    throw_error(Errc::usage, "--min-ranks={} is more than --nproc-per-node={}{}; lower it, or start more workers",
                {options.min_ranks, options.workers, nodes == 1 ? "" : format_text(" on {} nodes", {nodes})});
  }
}

/// The launcher's configuration.
/// @param cores number of cores that this process may use
/// @param visible_devices called for --nproc-per-node=auto; may be null
/// @param backend that of the program; null: any
/// @throws Error (usage, identity). Blocking: reads the secret's file
inline NodeLauncherOptions node_launcher_options(Flags flags, const identity::Environment& environment, int cores,
                                                 VisibleDevices visible_devices = nullptr,
                                                 const BackendFacts* backend = nullptr) {
  const identity::Variables variables(environment);
  check_log_setting(variables);
  NodeLauncherOptions options;
  flags.node.is_elastic = backend != nullptr && backend->run_elastic != nullptr;
  options.node = detail::node_of(environment, flags.node);
  options.node_source = detail::node_source(flags.node, environment, options.node);
  options.cores = cores;
  options.workers = detail::worker_count(options.node.nproc_per_node, cores, visible_devices);
  if (options.workers == 1 && !flags.mpirun_workers.empty()) {
    log(LogLevel::warning, format_text("{} was passed to the program, which runs on 1 rank of this node; "
                                       "--nproc-per-node=N starts N. An argument of the program's own goes behind --",
                                       {flags.mpirun_workers}));
  }
  options.max_restarts = flags.max_restarts;
  options.min_ranks = flags.node.is_elastic ? detail::least_ranks(flags.min_ranks, options) : flags.min_ranks;
  if (backend != nullptr) detail::require_one_host(options, *backend);
  options.join_timeout = seconds_setting(variables, "DTRAIN_TIMEOUT_SECONDS", default_timeout);
  options.liveness = seconds_setting(variables, "DTRAIN_LIVENESS_SECONDS", default_liveness);
  options.straggler_factor = straggler_factor_setting(variables);
  if (visible_devices != nullptr) {
    options.shutdown_timeouts.exit_grace = device_shutdown_timeouts.exit_grace;
    if (options.max_restarts > 0) {  // the next attempt needs the device memory of killed workers
      options.shutdown_timeouts.kill_timeout = device_shutdown_timeouts.kill_timeout;
    }
  }
  options.stop_grace = seconds_setting(variables, "DTRAIN_GRACE_SECONDS", ShutdownSchedule::default_stop_grace);
  options.host_id = variables.text("DTRAIN_HOST_ID");
  options.secret = detail::secret_of_nodes(variables, options);
  options.interface = variables.text("DTRAIN_INTERFACE");
  options.job = identity::given_job_name(variables).value_or("");
  options.program.folds = variables.text("DTRAIN_LOG") != "debug";
  options.program.wrapper = std::move(flags.wrapper);
  options.program.wrapped_rank = flags.wrapped_rank;
  options.binding = flags.binding;
  options.program.arguments = std::move(flags.program);
  options.program.environment = environment;
  options.program.log_dir = std::move(flags.log_dir);
  return options;
}

}  // namespace DTRAIN_NAMESPACE::launch
