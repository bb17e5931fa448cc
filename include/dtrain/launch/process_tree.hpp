#pragma once
/// @file
/// Process tree of a launcher and its workers: ancestors, descendants and status, from /proc.

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

/// Fields of /proc/PROCESS/stat, "12 (a name) S 7 ...": field 4 is the parent, field 9 the kernel's flags, field 22 the
/// start time.
struct ProcessStatus {
  std::string name;
  std::int64_t parent = 0;
  std::uint64_t flags = 0;
  std::uint64_t began = 0;
};

inline std::optional<ProcessStatus> parse_process_status(std::string_view line) {
  constexpr int parent_field = 4;
  constexpr int flags_field = 9;
  constexpr int began_field = 22;
  const std::size_t open = line.find('(');
  const std::size_t close = line.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    return std::nullopt;
  }
  ProcessStatus status;
  status.name = std::string(line.substr(open + 1, close - open - 1));
  line.remove_prefix(close + 1);
  for (int field = 3; field <= began_field; ++field) {
    const std::optional<std::uint64_t> number = identity::parse_wide_integer(next_word(line));
    if (field == parent_field && number) {
      status.parent = static_cast<std::int64_t>(*number);
    } else if (field == flags_field && number) {
      status.flags = *number;
    } else if (field == began_field && number) {
      status.began = *number;
      return status;
    }
  }
  return std::nullopt;
}

/// nullopt: the process has ended.
inline std::optional<ProcessStatus> status_of(std::int64_t process, const SystemFiles& files = SystemFiles()) {
  return parse_process_status(files.text(format_text("/proc/{}/stat", {process})).value_or(""));
}

inline bool is_same_program(pid_t a, pid_t b) {
  struct ::stat first {};
  struct ::stat second {};
  return ::stat(format_text("/proc/{}/exe", {a}).c_str(), &first) == 0 &&
         ::stat(format_text("/proc/{}/exe", {b}).c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace detail

/// `ancestor`, if it is an ancestor of this process; 0 if a process namespace in between hides whether it is; else
/// nullopt.
inline std::optional<pid_t> ancestor_like(pid_t ancestor) {
  constexpr int deepest = 64;
  std::optional<pid_t> process = ::getppid();
  for (int depth = 0; depth < deepest && process && *process > 1 && *process != ancestor; ++depth) {
    const std::optional<detail::ProcessStatus> status = detail::status_of(*process);
    process = status ? std::optional(static_cast<pid_t>(status->parent)) : std::nullopt;  // 0: of another namespace
  }
  return process == ancestor || process == pid_t{0} ? process : std::nullopt;
}

/// Whether a signal would end a process by default: the process neither handles nor ignores it, and its first thread
/// does not block it, as for another one that waits for it. False for a process that has ended.
inline bool would_end(pid_t process, int signal, const SystemFiles& files = SystemFiles()) {
  const std::string status = files.text(format_text("/proc/{}/status", {process})).value_or("");
  bool is_taken = status.empty();
  for (const char* const name : {"SigBlk:", "SigIgn:", "SigCgt:"}) {
    const std::size_t at = status.find(name);
    const char* const mask = at == std::string::npos ? "" : status.c_str() + at + 7;
    is_taken = is_taken || (std::strtoull(mask, nullptr, 16) >> (signal - 1) & 1U) != 0;
  }
  return !is_taken;
}

/// The process itself and its descendants, breadth first; stops when it has found 4096 or more.
inline std::vector<pid_t> descendants_of(pid_t process) {
  constexpr std::size_t most = 4096;
  const SystemFiles files;
  std::vector<pid_t> found{process};
  for (std::size_t i = 0; i < found.size() && found.size() < most; ++i) {
    const std::string tasks = format_text("/proc/{}/task", {found[i]});
    for (const std::string& task : files.names(tasks)) {
      const std::string text = files.text(format_text("{}/{}/children", {tasks, task})).value_or("");
      std::string_view children = text;
      while (!children.empty()) {  // "12 13 "
        if (const auto child = identity::parse_integer(next_entry(children, ' '))) found.push_back(*child);
      }
    }
  }
  return found;
}

/// The rank that a wrapper started as its child (strace, gdb, a shell), followed by the rank's descendants. Empty if
/// the wrapper became the rank by exec (valgrind, numactl, env), or has not started it yet.
inline std::vector<pid_t> rank_below(pid_t wrapper) {
  if (detail::is_same_program(wrapper, ::getpid())) {
    return {};
  }
  for (const pid_t process : descendants_of(wrapper)) {
    if (process != wrapper && detail::is_same_program(process, ::getpid())) {
      return descendants_of(process);
    }
  }
  return {};
}

}  // namespace DTRAIN_NAMESPACE::launch
