#pragma once
/// @file
/// Memory kills: whether the kernel killed a worker because its control group was out of memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Compares the counter of kills of this process's control group, which its workers are in, with that at construction.
/// The kernel adds to it before the signal. Source: Documentation/admin-guide/cgroup-v2 (memory.events) in Linux, and
/// memory.oom_control of version 1.
class MemoryKills {
 public:
  explicit MemoryKills(SystemFiles files = SystemFiles())
      : files_(std::move(files)),
        groups_(control_groups(files_.text("/proc/self/cgroup").value_or(""), "memory")),
        explained_(count()) {}

  /// Call it for each worker that SIGKILL ended. @returns " (out of memory: the cgroup's limit is 4 GiB)" if there was
  /// a kill that no earlier call explained; else an empty text
  std::string explain() {
    if (count() <= explained_) {
      return {};
    }
    ++explained_;
    const std::uint64_t limit = limit_bytes();
    return limit == no_limit ? std::string(" (out of memory: the host has no more)")
                             : format_text(" (out of memory: the cgroup's limit is {})", {size_text(limit)});
  }

  /// "4 GiB"; in the largest unit of which the size is a multiple.
  static std::string size_text(std::uint64_t bytes) {
    const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    for (; unit + 1 < std::size(units) && bytes >= 1024 && bytes % 1024 == 0; ++unit) {
      bytes /= 1024;
    }
    return format_text("{} {}", {bytes, units[unit]});
  }

 private:
  static constexpr std::uint64_t no_limit = std::uint64_t{1}
                                            << 60;  ///< version 1 writes more than this, version 2 "max"

  std::string text(const ControlGroup& group, const char* second_version, const char* first_version) const {
    return files_.text(group.folder + (group.is_first_version ? first_version : second_version)).value_or("");
  }

  /// Of the closest group that has the file: its counter includes the groups below it. 0 if the kernel does not count.
  std::uint64_t count() const {
    constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
    for (const ControlGroup& group : groups_) {
      const std::string events = "\n" + text(group, "/memory.events", "/memory.oom_control");
      const std::uint64_t kills = number_after(events, "\noom_kill ", unknown);
      if (kills != unknown) {
        return kills;
      }
    }
    return 0;
  }

  std::uint64_t limit_bytes() const {
    std::uint64_t limit = no_limit;
    for (const ControlGroup& group : groups_) {
      limit = std::min(limit, number_after(text(group, "/memory.max", "/memory.limit_in_bytes"), "", no_limit));
    }
    return limit;
  }

  SystemFiles files_;
  std::vector<ControlGroup> groups_;
  std::uint64_t explained_;  ///< kills that need no explanation any more
};

}  // namespace DTRAIN_NAMESPACE::launch
