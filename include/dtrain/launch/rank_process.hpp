#pragma once
/// @file
/// launch::RankProcess: identity and settings of the process that is a rank.

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/launch/configuration/job_identity.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Copies share the strings. The program may write to them, as to main's argv.
class ArgumentVector {
 public:
  ArgumentVector() : ArgumentVector(std::vector<std::string>{}) {}

  explicit ArgumentVector(std::vector<std::string> texts) : storage_(std::make_shared<Storage>()) {
    storage_->texts = std::move(texts);
    for (std::string& text : storage_->texts) {
      storage_->pointers.push_back(text.data());
    }
    storage_->pointers.push_back(nullptr);
  }

  /// argc and argv; argv[argc] is null. Lifetime: as long as a copy of this ArgumentVector lives.
  int count() const noexcept { return static_cast<int>(storage_->texts.size()); }
  char** pointers() const noexcept { return storage_->pointers.data(); }

  std::span<char* const> view() const noexcept { return {storage_->pointers.data(), storage_->texts.size()}; }

 private:
  struct Storage {
    std::vector<std::string> texts;
    std::vector<char*> pointers;
  };

  std::shared_ptr<Storage> storage_;
};

/// A value that refers to no other object.
struct RankProcess {
  identity::ProcessIdentity identity;
  ArgumentVector argument_vector;  ///< without arguments that launchers add
  bool hosts_store = false;        ///< this process runs the job's store
  JobIdentity job;                 ///< distinguishes the job from other jobs
  std::optional<std::string> host_id_override;
  std::optional<std::string> interface;                  ///< where this process's store listens: a name or an address
  std::optional<rendezvous::Secret> secret;              ///< of the job, if it has one
  std::chrono::nanoseconds timeout = default_timeout;    ///< of a collective and of the rendezvous
  std::chrono::nanoseconds liveness = default_liveness;  ///< how long a silent peer counts as alive

  /// argv; [0] is the program's name. Lifetime: as long as a copy of this RankProcess lives.
  std::span<char* const> arguments() const noexcept { return argument_vector.view(); }
};

/// Result of a launcher's start(): a rank's process, or the exit code of this process.
struct StartResult {
  explicit StartResult(RankProcess rank) : worker(std::move(rank)) {}
  explicit StartResult(int code) noexcept : exit_code(code) {}

  std::optional<RankProcess> worker;
  int exit_code = 0;
};

/// Options of a process that joins a job of an external launcher. Values that are not set come from the environment.
struct JoinOptions {
  std::optional<identity::ProcessIdentity> identity;
  std::optional<std::chrono::nanoseconds> timeout;
  std::vector<std::string> arguments;  ///< argv; a launcher may have added --local_rank=N
};

/// The worker that this process's environment describes. Rank 0 hosts the store. Rank 0 also prints its identity on
/// stderr if there are several ranks, or warnings. Closed standard descriptors become /dev/null.
/// @throws identity::IdentityError; Error (usage) for an invalid setting, or a flag of PerNode's launcher
RankProcess rank_process_of(JoinOptions options);

/// Rank 0 of 1; ignores ranks in the environment. It hosts the store. Closed standard descriptors become /dev/null.
/// @throws Error (usage) for an invalid setting
RankProcess rank_process_alone(const identity::Environment& environment, std::vector<std::string> arguments);

/// The worker that launch::PerNode's launcher started as this process. The launcher hosts the store.
/// @throws as rank_process_of
RankProcess rank_process_of_launcher(const identity::Environment& environment, std::vector<std::string> arguments);

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS
#include "dtrain/launch/rank_process_definitions.hpp"
#endif
