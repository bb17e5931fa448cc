#pragma once
/// @file
/// Available memory: how much this process may still allocate, by the kernel's estimate and control-group limits.

#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// Bytes that the control group in `folder` may still take: its limit minus its use, without file pages, which the
/// kernel reclaims. No bound if the folder has no limit or does not exist.
/// @param files prefix of the file-page counters that include child groups: "total_" in version 1, "" in version 2
std::uint64_t available_in_group(const std::string& folder, const char* limit, const char* usage,
                                 const std::string& files);

/// The minimum over this process's control group and its ancestors, in versions 1 and 2 of the kernel's interface.
/// @param groups content of /proc/self/cgroup: lines "0::/path" or "4:memory:/path"
std::uint64_t available_in_groups(std::string_view groups, const std::string& root = "/sys/fs/cgroup");

/// Bytes that the kernel estimates as free or reclaimable on this host, at most those that the control groups leave.
/// Checked before an allocation, because the kernel kills processes whose memfd grows beyond it. No bound if unknown.
std::uint64_t available_memory_bytes();

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <limits>

#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED std::uint64_t available_in_group(const std::string& folder, const char* limit, const char* usage,
                                                const std::string& files) {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t most = number_after(read_start(folder + limit), "", unknown);
  if (most == unknown) {
    return unknown;
  }
  const std::uint64_t used = number_after(read_start(folder + usage), "", 0);
  const std::string statistics = format_text("\n{}", {read_start(folder + "/memory.stat")});
  const std::uint64_t reclaimable = number_after(statistics, format_text("\n{}inactive_file ", {files}), 0) +
                                    number_after(statistics, format_text("\n{}active_file ", {files}), 0);
  const std::uint64_t held = used - std::min(used, reclaimable);
  return most - std::min(most, held);
}

DTRAIN_DEFINED std::uint64_t available_in_groups(std::string_view groups, const std::string& root) {
  std::uint64_t available = std::numeric_limits<std::uint64_t>::max();
  for (const ControlGroup& group : control_groups(groups, "memory", root)) {
    available = std::min(
        available, group.is_first_version
                       ? available_in_group(group.folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_")
                       : available_in_group(group.folder, "/memory.max", "/memory.current", ""));
  }
  return available;
}

DTRAIN_DEFINED std::uint64_t available_memory_bytes() {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t kibibytes = number_after(read_start("/proc/meminfo"), "MemAvailable:", unknown / 1024);
  return std::min(kibibytes > unknown / 1024 ? unknown : kibibytes * 1024,
                  available_in_groups(read_start("/proc/self/cgroup")));
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
