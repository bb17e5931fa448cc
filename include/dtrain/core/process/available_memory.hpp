#pragma once
/// @file
/// Available memory: how much this process may still allocate, by the kernel's estimate and control-group limits.

#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// The first 4096 bytes of a kernel file; empty if it cannot be read.
std::string read_start(const std::string& path);

/// The number after `label` in `text`; `otherwise` if there is none.
std::uint64_t number_after(std::string_view text, std::string_view label, std::uint64_t otherwise) noexcept;

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
#include <charconv>
#include <limits>

#include "dtrain/core/process/small_file.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::string read_start(const std::string& path) {
  return read_small_file(path, 4096).value_or("");
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
  while (!groups.empty()) {
    const std::size_t end = std::min(groups.find('\n'), groups.size());
    const std::string_view line = groups.substr(0, end);
    groups.remove_prefix(std::min(groups.size(), end + 1));
    const std::size_t name = line.find(':');
    const std::size_t path_at = name == std::string_view::npos ? name : line.find(':', name + 1);
    if (path_at == std::string_view::npos) {
      continue;
    }
    const bool first_version = line.substr(name + 1, path_at - name - 1) == "memory";
    if (!first_version && !line.starts_with("0::")) {
      continue;
    }
    // In a container, the path may be the host's; the loop ends at the container's own root in any case.
    std::string path(line.substr(path_at + 1));
    for (;; path.erase(path.rfind('/'))) {
      const std::string folder =
          format_text("{}{}{}", {root, first_version ? "/memory" : "", path == "/" ? "" : std::string_view(path)});
      available = std::min(available, first_version ? available_in_group(folder, "/memory.limit_in_bytes",
                                                                         "/memory.usage_in_bytes", "total_")
                                                    : available_in_group(folder, "/memory.max", "/memory.current", ""));
      if (path.find('/') == std::string::npos) {
        break;
      }
    }
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
