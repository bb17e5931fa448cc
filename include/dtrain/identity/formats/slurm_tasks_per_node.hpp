#pragma once
/// @file
/// Slurm tasks per node: parser of task counts such as "2(x3),1".

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/identity/environment/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

struct TasksOnNodes {
  int tasks = 0;
  int nodes = 1;
};

/// "2(x3)" or "1"; nullopt for other text.
inline std::optional<TasksOnNodes> parse_tasks_on_nodes(std::string_view entry) {
  TasksOnNodes parsed;
  const std::size_t bracket = entry.find('(');
  if (bracket != std::string_view::npos) {
    std::string_view repeat = entry.substr(bracket);
    if (repeat.size() < 4 || repeat.substr(0, 2) != "(x" || repeat.back() != ')') {
      return std::nullopt;
    }
    repeat.remove_prefix(2);
    repeat.remove_suffix(1);
    parsed.nodes = parse_integer(repeat).value_or(0);
  }
  parsed.tasks = parse_integer(entry.substr(0, bracket)).value_or(0);
  return parsed.tasks > 0 && parsed.nodes > 0 ? std::optional(parsed) : std::nullopt;
}

}  // namespace detail

/// Number of tasks on node `node` (from 0) in `list`, the value of `variable`. Checks the whole list.
/// Example: "2(x3),1" has 2 tasks on nodes 0 to 2, and 1 task on node 3.
/// @throws IdentityError (bad-tasks-per-node) for an invalid list, or one that has no entry for the node
inline int slurm_tasks_on_node(std::string_view variable, std::string_view list, int node) {
  std::optional<int> found;
  long long nodes = 0;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::optional<detail::TasksOnNodes> entry = detail::parse_tasks_on_nodes(list.substr(begin, end - begin));
    if (!entry) {
      throw IdentityError(
          IdentityErrc::bad_tasks_per_node,
          quoted(variable, list) + " is not a list of task counts such as 2(x3),1; correct it or unset it");
    }
    nodes += entry->nodes;
    if (!found && node < nodes) {
      found = entry->tasks;
    }
    begin = end + 1;
  }
  if (!found) {
    throw IdentityError(IdentityErrc::bad_tasks_per_node,
                        quoted(variable, list) + " counts the tasks of " + std::to_string(nodes) +
                            " nodes, but SLURM_NODEID='" + std::to_string(node) +
                            "' is beyond them; correct one of them, or unset " + std::string(variable));
  }
  return *found;
}

}  // namespace DTRAIN_NAMESPACE::identity
