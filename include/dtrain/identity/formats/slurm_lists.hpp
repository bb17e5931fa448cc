#pragma once
/// @file
/// Slurm lists: host lists such as "n[1-3,7]" and task counts such as "4(x2),1". slurm_step.hpp parses by it.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/formats/addresses.hpp"
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

}  // namespace DTRAIN_NAMESPACE::identity
