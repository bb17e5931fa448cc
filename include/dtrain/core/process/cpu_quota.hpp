#pragma once
/// @file
/// CPU quota: how many cores the control groups of this process let it use, as Kubernetes and docker --cpus limit it.

#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// The smallest quota of this process's control group and its ancestors (cpu.max; cpu.cfs_quota_us in version 1) in
/// whole cores, at least 1: 2.5 cores serve two ranks that always compute. nullopt if no group has a quota.
/// @param groups content of /proc/self/cgroup
std::optional<int> cpu_quota_of_groups(std::string_view groups, const std::string& root = "/sys/fs/cgroup");

/// cpu_quota_of_groups() of this process.
std::optional<int> cpu_quota();

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstdint>
#include <limits>

#include "dtrain/core/process/control_groups.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED std::optional<int> cpu_quota_of_groups(std::string_view groups, const std::string& root) {
  constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
  constexpr std::uint64_t usual_period = 100000;  // microseconds
  constexpr std::uint64_t most_cores = 1 << 20;
  std::uint64_t cores = none;
  for (const ControlGroup& group : control_groups(groups, "cpu", root)) {
    std::uint64_t quota = none;
    std::uint64_t period = usual_period;
    if (group.is_first_version) {  // the quota is -1 if there is none
      quota = number_after(read_start(group.folder + "/cpu.cfs_quota_us"), "", none);
      period = number_after(read_start(group.folder + "/cpu.cfs_period_us"), "", usual_period);
    } else {  // "250000 100000" or "max 100000"
      const std::string text = read_start(group.folder + "/cpu.max");
      quota = number_after(text, "", none);
      period = number_after(text, " ", usual_period);
    }
    if (quota != none && period != 0) {
      cores = std::min(cores, std::clamp<std::uint64_t>(quota / period, 1, most_cores));
    }
  }
  return cores == none ? std::nullopt : std::optional(static_cast<int>(cores));
}

DTRAIN_DEFINED std::optional<int> cpu_quota() {
  return cpu_quota_of_groups(read_start("/proc/self/cgroup"));
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
