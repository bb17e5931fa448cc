#pragma once
/// @file
/// Control groups (cgroups) of this process: the cores and the memory that they leave to it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// The smallest quota of this process's control group and its ancestors (cpu.max; cpu.cfs_quota_us in version 1) in
/// whole cores, at least 1: 2.5 cores serve two ranks that always compute. nullopt if no group has a quota.
/// @param groups content of /proc/self/cgroup
std::optional<int> cpu_quota_of_groups(std::string_view groups, const std::string& root = "/sys/fs/cgroup");

/// cpu_quota_of_groups() of this process.
std::optional<int> cpu_quota();

/// The minimum over this process's control group and its ancestors, in versions 1 and 2 of the kernel's interface.
/// @param groups content of /proc/self/cgroup: lines "0::/path" or "4:memory:/path"
std::uint64_t available_in_groups(std::string_view groups, const std::string& root = "/sys/fs/cgroup");

/// Bytes that the kernel estimates as free or reclaimable on this host, at most those that the control groups leave.
/// Checked before an allocation, because the kernel kills processes whose memfd grows beyond it. No bound if unknown.
std::uint64_t available_memory_bytes();

/// The folder of a control group's files.
struct ControlGroup {
  std::string folder;
  bool is_first_version = false;
};

/// A process's control group of a controller, then its ancestors up to the root that the process sees. The folders may
/// not exist: in a container, the path in /proc/self/cgroup may be the host's.
/// @param groups content of /proc/self/cgroup: lines "0::/path" or "4:cpu,cpuacct:/path"
/// @param controller "memory" or "cpu"
std::vector<ControlGroup> control_groups(std::string_view groups, std::string_view controller,
                                         const std::string& root = "/sys/fs/cgroup");

/// The number after `label` in `text`; `otherwise` if there is none.
std::uint64_t number_after(std::string_view text, std::string_view label, std::uint64_t otherwise) noexcept;

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <system_error>

#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {
/// No bound, or a number that the kernel does not give.
inline constexpr std::uint64_t unbounded = std::numeric_limits<std::uint64_t>::max();

/// The first 4096 bytes of a kernel file; empty if it cannot be read.
DTRAIN_NOT_INLINED inline std::string read_start(const std::string& path) {
  return read_small_file(path, 4096).value_or("");
}

/// Bytes that the control group in `folder` may still take: its limit minus its use, without file pages, which the
/// kernel reclaims. No bound if the folder has no limit or does not exist.
/// @param files prefix of the file-page counters that include child groups: "total_" in version 1, "" in version 2
inline std::uint64_t available_in_group(const std::string& folder, const char* limit, const char* usage,
                                        const std::string& files) {
  const std::uint64_t most = number_after(read_start(folder + limit), "", unbounded);
  if (most == unbounded) {
    return unbounded;
  }
  const std::uint64_t used = number_after(read_start(folder + usage), "", 0);
  const std::string statistics = format_text("\n{}", {read_start(folder + "/memory.stat")});
  const std::uint64_t reclaimable = number_after(statistics, format_text("\n{}inactive_file ", {files}), 0) +
                                    number_after(statistics, format_text("\n{}active_file ", {files}), 0);
  return most - std::min(most, used - std::min(used, reclaimable));
}

}  // namespace detail

DTRAIN_DEFINED std::optional<int> cpu_quota_of_groups(std::string_view groups, const std::string& root) {
  constexpr std::uint64_t none = detail::unbounded;
  constexpr std::uint64_t usual_period = 100000;  // microseconds
  constexpr std::uint64_t most_cores = 1 << 20;
  std::uint64_t cores = none;
  for (const ControlGroup& group : control_groups(groups, "cpu", root)) {
    // Version 1 has the quota -1 if there is none. Version 2: "250000 100000" or "max 100000".
    const bool is_first = group.is_first_version;
    const std::string text = detail::read_start(group.folder + (is_first ? "/cpu.cfs_quota_us" : "/cpu.max"));
    const std::uint64_t quota = number_after(text, "", none);
    const std::uint64_t period =
        is_first ? number_after(detail::read_start(group.folder + "/cpu.cfs_period_us"), "", usual_period)
                 : number_after(text, " ", usual_period);
    if (quota != none && period != 0) {
      cores = std::min(cores, std::clamp<std::uint64_t>(quota / period, 1, most_cores));
    }
  }
  return cores == none ? std::nullopt : std::optional(static_cast<int>(cores));
}

DTRAIN_DEFINED std::optional<int> cpu_quota() {
  return cpu_quota_of_groups(detail::read_start("/proc/self/cgroup"));
}

DTRAIN_DEFINED std::uint64_t available_in_groups(std::string_view groups, const std::string& root) {
  std::uint64_t available = detail::unbounded;
  for (const ControlGroup& group : control_groups(groups, "memory", root)) {
    available = std::min(
        available,
        group.is_first_version
            ? detail::available_in_group(group.folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_")
            : detail::available_in_group(group.folder, "/memory.max", "/memory.current", ""));
  }
  return available;
}

DTRAIN_DEFINED std::uint64_t available_memory_bytes() {
  constexpr std::uint64_t most = detail::unbounded / 1024;
  const std::uint64_t kibibytes = number_after(detail::read_start("/proc/meminfo"), "MemAvailable:", most);
  return std::min(kibibytes > most ? detail::unbounded : kibibytes * 1024,
                  available_in_groups(detail::read_start("/proc/self/cgroup")));
}

DTRAIN_DEFINED std::vector<ControlGroup> control_groups(std::string_view groups, std::string_view controller,
                                                        const std::string& root) {
  std::vector<ControlGroup> found;
  while (!groups.empty()) {
    const std::string_view line = next_entry(groups, '\n');
    const std::size_t name = line.find(':');
    const std::size_t path_at = name == std::string_view::npos ? name : line.find(':', name + 1);
    if (path_at == std::string_view::npos) {
      continue;
    }
    const bool is_first_version = has_entry(line.substr(name + 1, path_at - name - 1), ',', controller);
    if (!is_first_version && !line.starts_with("0::")) {
      continue;
    }
    const std::string top = is_first_version ? format_text("{}/{}", {root, controller}) : root;
    std::string path(line.substr(path_at + 1));
    for (;; path.erase(path.rfind('/'))) {
      found.push_back({path == "/" ? top : top + path, is_first_version});
      if (path.find('/') == std::string::npos) {
        break;
      }
    }
  }
  return found;
}

DTRAIN_DEFINED std::uint64_t number_after(std::string_view text, std::string_view label,
                                          std::uint64_t otherwise) noexcept {
  const std::size_t place = text.find(label);
  if (place == std::string_view::npos) {
    return otherwise;
  }
  text.remove_prefix(place + label.size());
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  std::uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() ? number : otherwise;
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
