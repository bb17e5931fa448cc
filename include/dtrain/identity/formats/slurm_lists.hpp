#pragma once
/// @file
/// Slurm lists: host lists such as "n[1-3,7]" and task counts such as "4(x2),1".

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/formats/host_port.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

inline bool is_digit(char byte) noexcept {
  return byte >= '0' && byte <= '9';
}

/// Reads a list from its beginning to its end. Each function consumes the element that it is named after, or throws.
class HostListReader {
 public:
  HostListReader(std::string_view variable, std::string_view list) noexcept : variable_(variable), list_(list) {}

  std::string first_host() {
    std::string first = host();
    while (at_ != list_.size()) {
      take(',', "a comma between hosts");
      host();
    }
    return first;
  }

 private:
  /// One entry, with any number of brackets. @returns its first host
  std::string host() {
    std::string name;
    while (at_ != list_.size() && peek() != ',') {
      if (peek() == '[') {
        name += ranges();
      } else if (is_host_name_byte(peek())) {
        name += list_[at_++];
      } else {
        fail("a byte that no host's name has");
      }
    }
    if (name.empty()) {
      fail("an empty name");
    }
    return name;
  }

  std::string ranges() {
    take('[', "a '['");
    std::string first = range();
    while (peek() == ',') {
      ++at_;
      range();
    }
    take(']', "a ']'");
    return first;
  }

  /// "7", or "001-003". @returns the first number, with leading zeros
  std::string range() {
    const std::string_view low = digits();
    if (peek() == '-') {
      ++at_;
      if (is_less(digits(), low)) {
        fail("a range that runs backwards");
      }
    }
    return std::string(low);
  }

  std::string_view digits() {
    const std::size_t begin = at_;
    while (is_digit(peek())) {
      ++at_;
    }
    if (at_ == begin) {
      fail("no number where one belongs");
    }
    return list_.substr(begin, at_ - begin);
  }

  /// Compares decimal numbers of any length; ignores leading zeros.
  static bool is_less(std::string_view a, std::string_view b) noexcept {
    a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
    b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
    return a.size() != b.size() ? a.size() < b.size() : a < b;
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
};

}  // namespace detail

/// The first host of `list`, the value of `variable`. The list need not be sorted; zero padding is kept.
/// Example: "node[001-003,007],gpu-a" gives "node001".
/// @throws IdentityError (bad-hostlist) if any entry of the list is invalid
inline std::string first_slurm_host(std::string_view variable, std::string_view list) {
  return detail::HostListReader(variable, list).first_host();
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
