#pragma once
/// @file
/// RankProcess: identity and settings of a rank's process, from a launcher's start(). rank_process_of(): from the
/// environment.

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/rendezvous/control/control_plane.hpp"

namespace DTRAIN_NAMESPACE::identity {
class Variables;
}

namespace DTRAIN_NAMESPACE::launch {

/// Copies share the strings. The program may write to them, as to main's argv.
class ArgumentVector {
 public:
  ArgumentVector() : ArgumentVector(std::vector<std::string>{}) {}
  explicit ArgumentVector(std::vector<std::string> texts);

  /// argc and argv; argv[argc] is null. Lifetime: as long as a copy of this ArgumentVector lives.
  int count() const noexcept { return static_cast<int>(storage_->texts.size()); }
  char** pointers() const noexcept { return storage_->pointers.data(); }

  std::span<char*> view() const noexcept { return {storage_->pointers.data(), storage_->texts.size()}; }

 private:
  struct Storage {
    std::vector<std::string> texts;
    std::vector<char*> pointers;
  };

  std::shared_ptr<Storage> storage_;
};

/// Identity and settings of the process that is a rank. A value that refers to no other object.
/// @ingroup launchers
struct RankProcess : rendezvous::ControlPlaneOptions {
  int min_ranks = 0;           ///< least ranks of an elastic job of at most identity.world_size ranks; 0: not elastic
  int report_descriptor = -1;  ///< argument of report_end() in an elastic job
  /// How long a worker of an elastic job tries to reach the store again, once it has been a rank.
  std::chrono::nanoseconds reconnect_timeout = timeout;
  ArgumentVector argument_vector{};  ///< arguments except those that launchers add

  /// argv; [0] is the program's name. Lifetime: as long as a copy of this RankProcess lives.
  std::span<char*> arguments() const noexcept { return argument_vector.view(); }
};

/// Result of a launcher's start(): a rank's process, or the exit code of this process.
/// @ingroup launchers
struct StartResult {
  explicit StartResult(RankProcess rank) : worker(std::move(rank)) {}
  explicit StartResult(int code) noexcept : exit_code(code) {}
  std::optional<RankProcess> worker;
  int exit_code = 0;
};

/// Options of a process that joins a job of an external launcher. Values that are not set come from the environment.
/// @ingroup jobs
struct JoinOptions {
  std::optional<identity::ProcessIdentity> identity;
  std::optional<std::chrono::nanoseconds> timeout;
  std::vector<std::string> arguments;  ///< argv; a launcher may have added --local_rank=N
};

/// Whether the program takes an Elastic, and so may be a worker of an elastic job.
enum class Takes : bool { group, elastic };

/// The worker that this process's environment describes. Rank 0 hosts the store. Rank 0 also prints its identity on
/// stderr if there are several ranks, or warnings, and warns of unknown variables (unknown_variables()). Closed
/// standard descriptors become /dev/null.
///
/// DTRAIN_WORLD_SIZE=MIN:MAX describes a worker of an elastic job. MASTER_ADDR and MASTER_PORT (or DTRAIN_MASTER_*) are
/// the address of the job's store, which the process with index 0 hosts (StoreHost). The index is DTRAIN_RANK,
/// JOB_COMPLETION_INDEX, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID in a step, or RANK, the first one that is set,
/// and becomes identity.rank. It is no rank, and identifies no process: two processes may have the same one. In a step
/// of Slurm the step is the job's name, unless DTRAIN_JOB_ID is set, and its number chooses the port. DTRAIN_LAUNCHER
/// names another source: then the range is not read.
/// @throws identity::IdentityError (elastic-range for MIN:MAX, if the program takes a group, or torchrun has started
/// it); Error (usage) for an invalid setting, or a flag of PerNode's launcher
RankProcess rank_process_of(JoinOptions options, Takes takes = Takes::group);
/// The same by these variables, in place of the environment of this process.
RankProcess rank_process_of(JoinOptions options, Takes takes, const identity::Variables& variables);

/// Rank 0 of 1; ignores ranks in the environment. It hosts the store. Closed standard descriptors become /dev/null.
/// @throws Error (usage) for an invalid setting
RankProcess rank_process_alone(const identity::Variables& variables, std::vector<std::string> arguments);

/// The worker that launch::PerNode's launcher started as this process. The launcher hosts the store.
/// @throws as rank_process_of
RankProcess rank_process_of_launcher(const identity::Variables& variables, std::vector<std::string> arguments);

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS

#include <fcntl.h>

#include <algorithm>
#include <cstdint>

#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/job_name.hpp"
#include "dtrain/identity/launchers/variable_tables.hpp"
#include "dtrain/identity/resolve_identity.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/configuration/flags.hpp"
#include "dtrain/launch/configuration/job_identity.hpp"
#include "dtrain/launch/configuration/known_variables.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/diagnostics/network_report.hpp"
#include "dtrain/launch/supervise/process_setup.hpp"
#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::launch {

DTRAIN_DEFINED ArgumentVector::ArgumentVector(std::vector<std::string> texts) : storage_(std::make_shared<Storage>()) {
  storage_->texts = std::move(texts);
  for (std::string& text : storage_->texts) {
    storage_->pointers.push_back(text.data());
  }
  storage_->pointers.push_back(nullptr);
}

namespace detail {

inline RankProcess rank_process_with(identity::ProcessIdentity identity, const identity::Variables& variables) {
  RankProcess worker;
  worker.identity = std::move(identity);
  worker.host_id = variables.text("DTRAIN_HOST_ID");
  worker.interface = variables.text("DTRAIN_INTERFACE");
  worker.secret = secret_setting(variables);
  worker.timeout = seconds_setting(variables, "DTRAIN_TIMEOUT_SECONDS", default_timeout);
  worker.limits.liveness = in_milliseconds(seconds_setting(variables, "DTRAIN_LIVENESS_SECONDS", default_liveness));
  worker.limits.straggler_factor = straggler_factor_setting(variables);
  worker.reconnect_timeout = worker.timeout;
  return worker;
}

/// A worker of an elastic job: each attempt gives it a rank.
inline RankProcess elastic_worker(const identity::Variables& variables) {
  const std::string_view sizes = variables.text("DTRAIN_WORLD_SIZE").value_or("");
  const std::optional<identity::IntegerRange> ranks = identity::parse_range(sizes);
  const auto stated = variables.text("DTRAIN_MASTER_ADDR");
  const auto address = stated ? stated : variables.text("MASTER_ADDR");
  const auto port = variables.port("DTRAIN_MASTER_PORT");
  if (!ranks || ranks->most > rendezvous::max_world_size || !address) {
    throw_error(Errc::identity,
                "DTRAIN_WORLD_SIZE={} with MASTER_ADDR={} describes no worker of an elastic job; it is MIN:MAX, 1 at "
                "least and {} at most, and MASTER_ADDR and MASTER_PORT are the address of the job's store",
                {in_quotes(sizes, 64), in_quotes(address.value_or(""), 64), rendezvous::max_world_size});
  }
  identity::ProcessIdentity identity;
  identity.launcher = "dtrain";
  identity.job = identity::given_job_name(variables);
  identity.world_size = ranks->most;
  identity.local_rank = variables.integer("DTRAIN_LOCAL_RANK");
  identity.master_addr = std::string(*address);
  identity.master_port = port ? port : variables.port("MASTER_PORT").value_or(identity::default_master_port);
  RankProcess worker = rank_process_with(std::move(identity), variables);
  worker.min_ranks = ranks->least;
  return worker;
}

/// elastic_worker() for a process that no launcher of dtrain has started.
inline RankProcess elastic_process(const identity::Variables& variables) {
  const std::string sizes = variables.stated({"DTRAIN_WORLD_SIZE"});
  if (variables.has("TORCHELASTIC_RUN_ID")) {  // its own store is at MASTER_ADDR and MASTER_PORT
    identity::throw_identity_error(identity::IdentityErrc::elastic_range,
                                   "{} is a range, and torchrun starts no elastic job of dtrain; unset it, or start a "
                                   "program with launch::PerNode in torchrun's place, with --min-ranks",
                                   {sizes});
  }
  RankProcess worker = elastic_worker(variables);
  // Open MPI's daemons may be a step: its processes inherit the daemon's variables, on some nodes.
  const bool in_step = identity::in_slurm_step(variables) && !variables.has("OMPI_COMM_WORLD_RANK");
  std::optional<std::string>& job = worker.identity.job;
  if (in_step) {
    job = job ? job : identity::detail::launch_name(variables, "slurm");
    if (!variables.has("DTRAIN_MASTER_PORT")) {
      worker.identity.master_port = identity::job_port(variables, identity::SlurmNumbers::step);
    }
  }
  std::optional<int> index;
  for (const char* const name : {"DTRAIN_RANK", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                 in_step ? "SLURM_PROCID" : "", "RANK"}) {  // a batch script has SLURM_PROCID=0
    variables.fill(index, name);
  }
  if (!index) {
    identity::throw_identity_error(identity::IdentityErrc::no_rank,
                                   "{} is an elastic job's, whose store the process with index 0 hosts, and this "
                                   "process has no index; set DTRAIN_RANK to 0 in one process, and to other numbers "
                                   "in the others",
                                   {sizes});
  }
  worker.identity.rank = *index;
  for (const char* const name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", in_step ? "SLURM_LOCALID" : ""}) {
    variables.fill(worker.identity.local_rank, name);
  }
  worker.hosts_store = *index == 0;
  worker.reconnect_timeout = 2 * worker.limits.liveness;
  return worker;
}

/// Logs rank 0's identity and, for several hosts, the network interface and reasons for a slow network.
inline void log_identity(const identity::ProcessIdentity& identity, const identity::Variables& variables) {
  if (!spans_hosts(identity)) {
    log(LogLevel::warning, to_string(identity));
    return;
  }
  const NetworkReport report = local_network_report(variables, identity.master_addr, true);
  log(LogLevel::warning, format_text("{}; {}", {to_string(identity), report.interface}));
  for (const std::string& warning : report.warnings) {
    log(LogLevel::warning, format_text("slow path: {}", {warning}));
  }
}

/// rank_process_of() without its warning.
inline RankProcess read_rank_process(JoinOptions options, Takes takes, const identity::Variables& variables) {
  check_log_setting(variables);
  refuse_launcher_flags(options.arguments);
  if (!options.identity && takes == Takes::elastic && identity::states_elastic_range(variables)) {
    RankProcess worker = elastic_process(variables);
    worker.argument_vector = ArgumentVector(std::move(options.arguments));
    worker.timeout = options.timeout.value_or(worker.timeout);
    return worker;
  }
  std::vector<const char*> pointers;
  for (const std::string& argument : options.arguments) {
    pointers.push_back(argument.c_str());
  }
  RankProcess worker = rank_process_with(
      options.identity ? std::move(*options.identity) : identity::process_identity(variables.environment(), pointers),
      variables);
  if (options.identity && !worker.identity.job) {  // DTRAIN_JOB_ID still applies
    identity::name_job(variables, worker.identity);
  }
  JobIdentity job = job_identity(variables, worker.identity);
  worker.origin = std::move(job.origin);
  if (worker.identity.elastic && worker.identity.master_addr) {
    // torchrun's port may be taken by another torchrun; its name may be "none".
    const int port = worker.identity.master_port.value_or(identity::default_master_port);
    append_text(job.name, "@{}:{}", {*worker.identity.master_addr, port});
    worker.master_ports = static_cast<std::uint16_t>(std::min(16, 65536 - port));
  }
  worker.identity.job = std::move(job.name);
  worker.argument_vector = ArgumentVector(identity::without_local_rank(options.arguments));
  worker.hosts_store = worker.identity.rank == 0;
  worker.timeout = options.timeout.value_or(worker.timeout);
  if (worker.identity.rank == 0 && (worker.identity.world_size > 1 || !worker.identity.warnings.empty())) {
    log_identity(worker.identity, variables);
  }
  return worker;
}

}  // namespace detail

DTRAIN_DEFINED RankProcess rank_process_of(JoinOptions options, Takes takes) {
  const identity::Environment environment = identity::snapshot_environment();
  return rank_process_of(std::move(options), takes, identity::Variables(environment));
}

DTRAIN_DEFINED RankProcess rank_process_of(JoinOptions options, Takes takes, const identity::Variables& variables) {
  open_standard_descriptors();
  RankProcess worker = reading_variables(
      variables.environment(), [&] { return detail::read_rank_process(std::move(options), takes, variables); });
  if (worker.identity.rank == 0) {
    warn_of_unknown_variables(variables.environment());
  }
  return worker;
}

DTRAIN_DEFINED RankProcess rank_process_alone(const identity::Variables& variables,
                                              std::vector<std::string> arguments) {
  open_standard_descriptors();
  check_log_setting(variables);
  const identity::Environment nothing;
  RankProcess worker =
      detail::rank_process_with(identity::SingleSource::read(identity::Variables(nothing), {}), variables);
  worker.argument_vector = ArgumentVector(std::move(arguments));
  worker.hosts_store = true;
  warn_of_unknown_variables(variables.environment());
  return worker;
}

DTRAIN_DEFINED RankProcess rank_process_of_launcher(const identity::Variables& variables,
                                                    std::vector<std::string> arguments) {
  RankProcess worker = is_elastic_worker(variables)
                           ? detail::elastic_worker(variables)
                           : detail::rank_process_with(identity::read_dtrain(variables, {}), variables);
  worker.report_descriptor = variables.integer(report_variable).value_or(-1);
  if (worker.report_descriptor >= 0 && ::fcntl(worker.report_descriptor, F_SETFD, FD_CLOEXEC) != 0) {
    throw_errno("keeping the descriptor of {} from this worker's children", {report_variable});
  }
  worker.argument_vector = ArgumentVector(std::move(arguments));
  return worker;
}

}  // namespace DTRAIN_NAMESPACE::launch

#endif  // DTRAIN_DEFINITIONS
