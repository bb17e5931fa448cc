#pragma once
/// @file
/// Who a process is, as far as its environment tells.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Where nothing else gives a port.
inline constexpr int default_master_port = 29500;

/// What is not set is learnt by exchange after connecting; what `provisional` names is a guess that it confirms.
struct ProcessIdentity {
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> node_count;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  int attempt = 0;  ///< how often the launcher has started the job again
  /// @name What tells the job from others (job_name.hpp)
  /// @{
  std::optional<std::string> job;  ///< its name: "DTRAIN_JOB_ID=monday", "SLURM_JOB_ID.SLURM_STEP_ID=17.0", a run id
  bool is_exact_job = false;       ///< no other job has that name
  bool one_starter = false;        ///< one process on each node starts all of its ranks
  std::string rank_variable;       ///< differs between the ranks; empty where there is one process only
  /// @}
  std::string launcher;                  ///< the source: "dtrain", "torch", ..., "single"
  bool elastic = false;                  ///< torchrun itself set RANK and WORLD_SIZE, not a script or a person
  std::vector<std::string> provisional;  ///< names of fields
  std::vector<std::string> warnings;     ///< sentences
  std::vector<std::string> ignored;      ///< other launchers, and variables, that are set but say something else

  /// The source, for sentences.
  std::string source_text() const { return launcher == "torch" && !elastic ? "RANK and WORLD_SIZE" : launcher; }

  bool is_provisional(std::string_view field) const {
    return std::find(provisional.begin(), provisional.end(), field) != provisional.end();
  }

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

}  // namespace DTRAIN_NAMESPACE::identity
