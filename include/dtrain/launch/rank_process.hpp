#pragma once
/// @file
/// launch::RankProcess: identity and settings of the process that is a rank.

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/rendezvous/control/control_plane_options.hpp"

namespace DTRAIN_NAMESPACE::identity {
class Variables;
}

namespace DTRAIN_NAMESPACE::launch {

/// Copies share the strings. The program may write to them, as to main's argv.
class ArgumentVector {
 public:
  ArgumentVector();
  explicit ArgumentVector(std::vector<std::string> texts);

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
struct RankProcess : rendezvous::ControlPlaneOptions {
  ArgumentVector argument_vector{};  ///< without arguments that launchers add

  /// argv; [0] is the program's name. Lifetime: as long as a copy of this RankProcess lives.
  std::span<char* const> arguments() const noexcept { return argument_vector.view(); }
};

/// Result of a launcher's start(): a rank's process, or the exit code of this process.
struct StartResult {
  explicit StartResult(RankProcess rank);
  explicit StartResult(int code) noexcept;

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
RankProcess rank_process_alone(const identity::Variables& variables, std::vector<std::string> arguments);

/// The worker that launch::PerNode's launcher started as this process. The launcher hosts the store.
/// @throws as rank_process_of
RankProcess rank_process_of_launcher(const identity::Variables& variables, std::vector<std::string> arguments);

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS
#include "dtrain/launch/rank_process_definitions.hpp"
#endif
