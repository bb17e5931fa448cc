#pragma once
/// @file
/// Slurm step: variables of a Slurm step for one of its tasks. Sources of launchers under srun read them.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
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
  const LauncherVariables names{"slurm", "SLURM_PROCID", slurm_size_variable(variables)};
  return in_slurm_step(variables) ? names.rank_and_size(variables) : std::nullopt;
}

namespace detail {

/// The variable `base` of component `component` of a heterogeneous job. Slurm 22.05, and srun without salloc or sbatch,
/// call a component a pack. Empty if neither is set.
inline std::string slurm_component_variable(const Variables& variables, std::string_view base, int component) {
  for (const char* kind : {"HET", "PACK"}) {
    std::string variable = format_text("{}_{}_GROUP_{}", {base, kind, component});
    if (variables.has(variable)) {
      return variable;
    }
  }
  return {};
}

/// Slurm's own bound.
inline constexpr int most_slurm_components = 128;

/// Whether the variables of components are of this job. A job that is submitted in a heterogeneous job inherits the
/// variables of that job.
inline bool are_components_current(const Variables& variables) {
  const std::optional<std::string_view> job = variables.text("SLURM_JOB_ID");
  bool any = false;
  for (int component = 0; job && component < most_slurm_components; ++component) {
    const std::string id = slurm_component_variable(variables, "SLURM_JOB_ID", component);
    if (!id.empty() && variables.text(id) == job) {
      return true;
    }
    any = any || !id.empty();
  }
  return !any;
}

/// The variables with the node lists of the components of this job, in the order of the components.
inline std::vector<std::string> slurm_component_lists(const Variables& variables) {
  std::vector<std::string> lists;
  for (int component = 0; component < most_slurm_components; ++component) {
    const std::string list = slurm_component_variable(variables, "SLURM_JOB_NODELIST", component);
    if (!list.empty()) {
      lists.push_back(list);
    }
  }
  return lists.empty() || are_components_current(variables) ? lists : std::vector<std::string>();
}

}  // namespace detail

/// The variable with the id of this job. Each component of a heterogeneous job has an id, and all its ranks use the id
/// of the first component.
inline std::string slurm_job_id_variable(const Variables& variables) {
  if (variables.has("SLURM_HET_JOB_ID")) {
    return "SLURM_HET_JOB_ID";
  }
  const std::string first = detail::slurm_component_variable(variables, "SLURM_JOB_ID", 0);
  return first.empty() || !detail::are_components_current(variables) ? "SLURM_JOB_ID" : first;
}

/// The host with SLURM_NODEID 0, from the step's node list, the value of `variable`. The list of a heterogeneous step
/// is sorted, but the node ids count the nodes of its first component, then those of its second, ...
/// Example: "n[1,3]", where component 0 has node n3 and component 1 has node n1, gives n3.
/// @pre `variable` is set. @throws IdentityError (bad-hostlist)
inline std::string first_slurm_node(const Variables& variables, const char* variable) {
  const std::string_view list = *variables.text(variable);
  const std::vector<std::string> components = detail::slurm_component_lists(variables);
  if (components.empty()) {
    return first_slurm_host(variable, list);
  }
  std::vector<std::string> nodes = slurm_hosts(variable, list);
  const std::string first = nodes.front();
  std::sort(nodes.begin(), nodes.end());
  for (const std::string& component : components) {
    for (std::string& host : slurm_hosts(component, *variables.text(component))) {
      if (std::binary_search(nodes.begin(), nodes.end(), host)) {  // a step may have some of the job's nodes
        return host;
      }
    }
  }
  return first;
}

/// Number of the step's tasks on this node; nullopt if Slurm's variables do not contain it. SLURM_GTIDS is right in
/// every step. SLURM_STEP_TASKS_PER_NODE has the order of the node list, which is that of the node ids unless the job
/// is heterogeneous.
/// @throws IdentityError: bad-tasks-per-node, bad-integer
inline std::optional<int> slurm_local_size(const Variables& variables) {
  const std::optional<std::string_view> ranks = variables.text("SLURM_GTIDS");
  if (!ranks) {
    const std::optional<std::string_view> list = variables.text("SLURM_STEP_TASKS_PER_NODE");
    const std::optional<int> node = variables.integer("SLURM_NODEID");
    return list && node && detail::slurm_component_lists(variables).empty()
               ? std::optional(slurm_tasks_on_node("SLURM_STEP_TASKS_PER_NODE", *list, *node))
               : std::nullopt;
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
  variables.fill(identity.local_rank, "SLURM_LOCALID");
  variables.fill(identity.node_rank, "SLURM_NODEID");
  identity.node_count = identity.node_count ? identity.node_count : variables.count("SLURM_STEP_NUM_NODES");
  identity.local_world_size = identity.local_world_size ? identity.local_world_size : slurm_local_size(variables);
}

}  // namespace DTRAIN_NAMESPACE::identity
