#pragma once
/// @file
/// Slurm step: variables that give a task's rank, nodes and sizes, with their lists of hosts and task counts.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/formats/addresses.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

inline bool is_digit(char byte) noexcept {
  return byte >= '0' && byte <= '9';
}

/// The most hosts that are read from one list, and the longest name of a host, in bytes.
inline constexpr std::size_t most_slurm_hosts = 65536;
inline constexpr std::size_t longest_slurm_host = 255;

/// Reads a list from its beginning to its end. Each function consumes the element that it is named after, or throws.
class HostListReader {
 public:
  /// @param all whether entries are read with all of their hosts, or each with its first one
  HostListReader(std::string_view variable, std::string_view list, bool all) noexcept
      : variable_(variable), list_(list), all_(all) {}

  /// All hosts, or the first one.
  std::vector<std::string> hosts() {
    std::vector<std::string> hosts = entry();
    while (at_ != list_.size()) {
      take(',', "a comma between hosts");
      for (std::string& host : entry()) {
        if (!all_) break;
        require_room(hosts.size());
        hosts.push_back(std::move(host));
      }
    }
    return hosts;
  }

 private:
  /// One entry, with any number of brackets. @returns its hosts; unless all_, the first one
  std::vector<std::string> entry() {
    std::vector<std::string> names(1);
    while (at_ != list_.size() && peek() != ',') {
      if (all_ && names.front().size() > longest_slurm_host) {
        fail("a name that is too long");
      }
      if (peek() == '[') {
        names = with_numbers(names, ranges());
      } else if (is_host_name_byte(peek())) {
        for (std::string& name : names) {
          name += peek();
        }
        ++at_;
      } else {
        fail("a byte that no host's name has");
      }
    }
    if (names.front().empty()) {
      fail("an empty name");
    }
    return names;
  }

  std::vector<std::string> with_numbers(const std::vector<std::string>& names,
                                        const std::vector<std::string>& numbers) const {
    std::vector<std::string> all;
    for (const std::string& name : names) {
      for (const std::string& number : numbers) {
        require_room(all.size());
        all.push_back(name + number);
      }
    }
    return all;
  }

  std::vector<std::string> ranges() {
    std::vector<std::string> numbers;
    take('[', "a '['");
    range(numbers);
    while (peek() == ',') {
      ++at_;
      range(numbers);
    }
    take(']', "a ']'");
    return numbers;
  }

  /// "7", or "001-003". Appends the numbers with their leading zeros; unless all_, the first number of the first range.
  void range(std::vector<std::string>& numbers) {
    const std::string_view low = digits();
    std::string_view high = low;
    if (peek() == '-') {
      ++at_;
      high = digits();
      if (is_less(high, low)) {
        fail("a range that runs backwards");
      }
    }
    if (all_ || numbers.empty()) {
      std::string number(low);
      numbers.push_back(number);
      while (all_ && is_less(number, high)) {
        require_room(numbers.size());
        increment(number);
        numbers.push_back(number);
      }
    }
  }

  void require_room(std::size_t hosts) const {
    if (hosts >= most_slurm_hosts) {
      fail(format_text("more than host {}, the last that is read", {most_slurm_hosts}));
    }
  }

  std::string_view digits() {
    const std::size_t begin = at_;
    while (is_digit(peek())) {
      ++at_;
    }
    if (at_ == begin) {
      fail("no number where one belongs");
    }
    if (all_ && at_ - begin > longest_slurm_host) {
      fail("a number that is too long");
    }
    return list_.substr(begin, at_ - begin);
  }

  /// Compares decimal numbers of any length; ignores leading zeros.
  static bool is_less(std::string_view a, std::string_view b) noexcept {
    a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
    b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }

  /// "009" becomes "010", and "99" becomes "100".
  static void increment(std::string& number) {
    for (std::size_t at = number.size(); at > 0; --at) {
      if (number[at - 1] != '9') {
        ++number[at - 1];
        return;
      }
      number[at - 1] = '0';
    }
    number.insert(number.begin(), '1');
  }

  char peek() const noexcept { return at_ < list_.size() ? list_[at_] : '\0'; }

  void take(char wanted, const char* what) {
    if (peek() != wanted || at_ == list_.size()) {
      fail(format_text("not {}", {what}));
    }
    ++at_;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw_identity_error(
        IdentityErrc::bad_hostlist,
        "{} is not a Slurm host list: at byte {} there is {}; correct it, or set MASTER_ADDR to the host of rank 0",
        {quoted(variable_, list_), at_, what});
  }

  std::string_view variable_;
  std::string_view list_;
  std::size_t at_ = 0;
  bool all_;
};

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

/// The first host of `list`, the value of `variable`. The list need not be sorted; zero padding is kept.
/// Example: "node[001-003,007],gpu-a" gives "node001".
/// @throws IdentityError (bad-hostlist) if any entry of the list is invalid
inline std::string first_slurm_host(std::string_view variable, std::string_view list) {
  return detail::HostListReader(variable, list, false).hosts().front();
}

/// All hosts of `list`, the value of `variable`, in the list's order.
/// Example: "r[0-1]n[09-10],a" gives r0n09, r0n10, r1n09, r1n10 and a.
/// @throws IdentityError (bad-hostlist) as first_slurm_host, and for more than 65,536 hosts
inline std::vector<std::string> slurm_hosts(std::string_view variable, std::string_view list) {
  return detail::HostListReader(variable, list, true).hosts();
}

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
      throw_identity_error(IdentityErrc::bad_tasks_per_node,
                           "{} is not a list of task counts such as 2(x3),1; correct it or unset it",
                           {quoted(variable, list)});
    }
    nodes += entry->nodes;
    if (!found && node < nodes) {
      found = entry->tasks;
    }
    begin = end + 1;
  }
  if (!found) {
    throw_identity_error(
        IdentityErrc::bad_tasks_per_node,
        "{} counts the tasks of {} nodes, but SLURM_NODEID='{}' is beyond them; correct one of them, or unset {}",
        {quoted(variable, list), nodes, node, variable});
  }
  return *found;
}

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
  const std::vector<std::string> nodes = slurm_hosts(variable, list);
  const std::set<std::string> in_step(nodes.begin(), nodes.end());  // a step may have some of the job's nodes
  for (const std::string& component : components) {
    for (std::string& host : slurm_hosts(component, *variables.text(component))) {
      if (in_step.contains(host)) return host;
    }
  }
  return nodes.front();
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
