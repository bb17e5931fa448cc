#pragma once
/// @file
/// ProcessIdentity: rank, sizes, node, store address and job of one process, stated by its launcher or guessed.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Port of the store if no variable or flag sets one.
inline constexpr int default_master_port = 29500;

/// Identity of a process in its job. Ranks compute unset fields by an exchange after connecting. The exchange also
/// confirms guessed fields, which `provisional` names.
/// @ingroup launchers
struct ProcessIdentity {
  DTRAIN_MEMBERS_DEFINED_APART(ProcessIdentity);

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
  bool is_exact_job = false;       ///< whether no other job has the name `job`
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

/// "identity from RANK and WORLD_SIZE: rank 1 of 4, local rank 1 of 2, node 0 of 2, store at h0:29500; ignored: slurm",
/// then the warnings.
std::string to_string(const ProcessIdentity& identity);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINE_MEMBERS(ProcessIdentity);

namespace detail {

/// "local rank 1 of 2". Ranks compute unknown values, and confirm guessed ones, after connecting.
inline std::string part_of_whole(const ProcessIdentity& identity, std::string_view name, const std::optional<int>& part,
                                 const std::optional<int>& whole, bool guessed) {
  if (!part) {
    return format_text("{} learnt after connecting", {name});
  }
  const char* const guess = guessed && identity.world_size > 1 ? " (a guess, confirmed after connecting)" : "";
  return whole ? format_text("{} {} of {}{}", {name, *part, *whole, guess})
               : format_text("{} {} of a number learnt after connecting{}", {name, *part, guess});
}

}  // namespace detail

DTRAIN_DEFINED std::string to_string(const ProcessIdentity& identity) {
  const std::string local_rank =
      detail::part_of_whole(identity, "local rank", identity.local_rank, identity.local_world_size,
                            identity.is_provisional("local_rank") || identity.is_provisional("local_world_size"));
  const std::string node =
      detail::part_of_whole(identity, "node", identity.node_rank, identity.node_count,
                            identity.is_provisional("node_rank") || identity.is_provisional("node_count"));
  constexpr std::size_t longest_name = 253;  // maximum of DNS
  const std::string address = excerpt(identity.master_addr.value_or("an address not known yet"), longest_name);
  const bool brackets = address.find(':') != std::string::npos && address.front() != '[';
  std::string line = format_text("identity from {}: rank {} of {}, {}, {}, store at {}{}{}",
                                 {identity.source_text(), identity.rank, identity.world_size, local_rank, node,
                                  brackets ? "[" : "", address, brackets ? "]" : ""});
  if (identity.master_port) append_text(line, ":{}", {*identity.master_port});
  if (identity.is_provisional("master_addr")) line += " (a guess)";
  if (identity.attempt > 0) append_text(line, ", attempt {}", {identity.attempt});
  if (!identity.ignored.empty()) append_text(line, "; ignored: {}", {joined(identity.ignored, ", ")});
  for (const std::string& warning : identity.warnings) {
    append_text(line, "; {}", {warning});
  }
  return line;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::identity
