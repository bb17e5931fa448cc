#pragma once
/// @file
/// Slurm step: variables of a Slurm step for one of its tasks.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/formats/slurm_lists.hpp"
#include "dtrain/identity/process_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The variable with the step's world size. SLURM_NTASKS is of the allocation; it is used if the step's is unset.
inline const char* slurm_size_variable(const Variables& variables) {
  return variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

/// Whether SLURM_STEP_ID is a step that starts tasks. Ids 4294967290 to 4294967293 are steps without tasks
/// (interactive, batch, extern, pending).
inline bool is_real_slurm_step(const Variables& variables) {
  constexpr std::uint64_t first_special = 4294967290;
  constexpr std::uint64_t last_special = 4294967293;
  const std::optional<std::string_view> text = variables.text("SLURM_STEP_ID");
  const std::uint64_t step = parse_wide_integer(text.value_or("")).value_or(0);
  return text && (step < first_special || step > last_special);
}

/// Whether this process is a task of a step that srun started. A batch script has SLURM_PROCID=0, but no such step.
inline bool in_slurm_step(const Variables& variables) {
  return is_real_slurm_step(variables) && variables.has("SLURM_PROCID") &&
         variables.has(slurm_size_variable(variables));
}

/// Rank and world size of this task in its step; nullopt outside a step.
inline std::optional<RankAndSize> slurm_step_rank_and_size(const Variables& variables) {
  return in_slurm_step(variables) ? stated_rank_and_size(variables, "SLURM_PROCID", slurm_size_variable(variables))
                                  : std::nullopt;
}

/// Number of the step's tasks on this node; nullopt if Slurm's variables do not contain it.
/// @throws IdentityError: bad-tasks-per-node, bad-integer
inline std::optional<int> slurm_local_size(const Variables& variables) {
  const std::optional<std::string_view> list = variables.text("SLURM_STEP_TASKS_PER_NODE");
  const std::optional<int> node = variables.integer("SLURM_NODEID");
  if (list && node) {
    return slurm_tasks_on_node("SLURM_STEP_TASKS_PER_NODE", *list, *node);
  }
  const std::optional<std::string_view> ranks = variables.text("SLURM_GTIDS");
  if (!ranks) {
    return std::nullopt;
  }
  const bool is_list =
      std::all_of(ranks->begin(), ranks->end(), [](char c) { return c == ',' || (c >= '0' && c <= '9'); });
  if (!is_list || ranks->front() == ',' || ranks->back() == ',' || ranks->find(",,") != std::string::npos) {
    throw_identity_error(IdentityErrc::bad_integer,
                         "{} is not a list of task numbers such as 4,5; correct it or unset it",
                         {quoted("SLURM_GTIDS", *ranks)});
  }
  return 1 + static_cast<int>(std::count(ranks->begin(), ranks->end(), ','));
}

/// Fills unset fields of `identity`: local rank and size, node rank and count. @throws as slurm_local_size
inline void fill_from_slurm_step(const Variables& variables, ProcessIdentity& identity) {
  identity.local_rank = identity.local_rank ? identity.local_rank : variables.integer("SLURM_LOCALID");
  identity.node_rank = identity.node_rank ? identity.node_rank : variables.integer("SLURM_NODEID");
  identity.node_count = identity.node_count ? identity.node_count : variables.count("SLURM_STEP_NUM_NODES");
  identity.local_world_size = identity.local_world_size ? identity.local_world_size : slurm_local_size(variables);
}

}  // namespace DTRAIN_NAMESPACE::identity
