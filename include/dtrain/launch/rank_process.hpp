#pragma once
/// @file
/// launch::RankProcess: identity and settings of the process that is a rank.

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/launch/configuration/argument_vector.hpp"
#include "dtrain/launch/configuration/job_identity.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A value; it needs nothing of what it was made from.
struct RankProcess {
  identity::ProcessIdentity identity;
  ArgumentVector argument_vector;  ///< without what launchers add
  bool hosts_store = false;        ///< the job's store is this process's to run
  JobIdentity job;                 ///< what tells the job from others
  std::optional<std::string> host_id_override;
  std::optional<std::string> interface;      ///< where a store of this process's listens: a name or an address
  std::optional<rendezvous::Secret> secret;  ///< of the job, where it has one
  std::chrono::nanoseconds timeout = default_timeout;    ///< of a collective and of the rendezvous
  std::chrono::nanoseconds liveness = default_liveness;  ///< how long a silent peer counts as alive

  /// argv; [0] is the program's name. Lifetime: as long as a copy of this RankProcess lives.
  std::span<char* const> arguments() const noexcept { return argument_vector.view(); }
};

/// What a launcher's start() returns: a rank's process, or the code that this process is to exit with.
struct StartResult {
  explicit StartResult(RankProcess rank) : worker(std::move(rank)) {}
  explicit StartResult(int code) noexcept : exit_code(code) {}

  std::optional<RankProcess> worker;
  int exit_code = 0;
};

/// How a process joins a job that somebody else started. What is not given is read from the environment.
struct JoinOptions {
  std::optional<identity::ProcessIdentity> identity;
  std::optional<std::chrono::nanoseconds> timeout;
  std::vector<std::string> arguments;  ///< argv, where a launcher may have left --local_rank=N in it
};

/// The worker that this process's environment describes; rank 0 hosts the store, and prints on stderr what was
/// read where there is more to print than one process alone. Closed standard descriptors become /dev/null.
/// @throws identity::IdentityError; Error (usage) for a setting that cannot be, or a flag of PerNode's launcher
RankProcess rank_process_of(JoinOptions options);

/// Rank 0 of 1, whatever the environment says of ranks; it hosts the store. Closed standard descriptors become
/// /dev/null. @throws Error (usage) for a setting that cannot be
RankProcess rank_process_alone(const identity::Environment& environment, std::vector<std::string> arguments);

/// The worker that launch::PerNode's launcher made of this process; the launcher hosts the store.
/// @throws as rank_process_of
RankProcess rank_process_of_launcher(const identity::Environment& environment, std::vector<std::string> arguments);

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS
#include "dtrain/launch/rank_process_definitions.hpp"
#endif
