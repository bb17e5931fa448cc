#pragma once
/// @file
/// Process identity: rank, sizes, node, store address and job of a process, from its environment.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Port of the store if no variable or flag sets one.
inline constexpr int default_master_port = 29500;

/// Ranks compute unset fields by an exchange after connecting. The exchange also confirms fields that are guesses,
/// which `provisional` names.
struct ProcessIdentity {
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> node_count;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  int attempt = 0;  ///< number of restarts of the job by the launcher
  /// @name Properties that distinguish the job from other jobs (job_name.hpp)
  /// @{
  std::optional<std::string> job;  ///< its name: "DTRAIN_JOB_ID=monday", "SLURM_JOB_ID.SLURM_STEP_ID=17.0", a run id
  bool is_exact_job = false;       ///< no other job has that name
  bool one_starter = false;        ///< one process on each node starts all of its ranks
  std::string rank_variable;       ///< differs between the ranks; empty for a single process
  /// @}
  std::string launcher;                  ///< the source: "dtrain", "torch", ..., "single"
  bool elastic = false;                  ///< torchrun set RANK and WORLD_SIZE, not a script or a user
  std::vector<std::string> provisional;  ///< names of fields
  std::vector<std::string> warnings;     ///< sentences
  std::vector<std::string> ignored;      ///< other launchers and variables that are set to other values

  /// Name of the source, for messages.
  std::string source_text() const { return launcher == "torch" && !elastic ? "RANK and WORLD_SIZE" : launcher; }

  bool is_provisional(std::string_view field) const {
    return std::find(provisional.begin(), provisional.end(), field) != provisional.end();
  }

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

}  // namespace DTRAIN_NAMESPACE::identity
