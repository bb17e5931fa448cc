#pragma once
/// @file
/// How much memory this process may still take.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "dtrain/net/descriptor.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The beginning of a small file of the kernel's; empty where it cannot be read.
inline std::string read_start(const char* path) {
  const net::Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  const ssize_t count = file ? ::read(file.get(), text.data(), text.size()) : -1;
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : std::string();
}

/// The number that follows `label` in `text`; `otherwise` where there is none.
inline std::uint64_t number_after(std::string_view text, std::string_view label, std::uint64_t otherwise) noexcept {
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

/// What the control group in `folder` may still take: its limit less what it uses, without files' pages, which the
/// kernel gives back. No bound where the folder has no limit, or does not exist.
/// @param files what the group's statistics call its files' pages, those of groups below included
inline std::uint64_t available_in_group(const std::string& folder, const char* limit, const char* usage,
                                        const std::string& files) {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t most = number_after(read_start((folder + limit).c_str()), "", unknown);
  if (most == unknown) {
    return unknown;
  }
  const std::uint64_t used = number_after(read_start((folder + usage).c_str()), "", 0);
  const std::string statistics = "\n" + read_start((folder + "/memory.stat").c_str());
  const std::uint64_t reclaimable = number_after(statistics, "\n" + files + "inactive_file ", 0) +
                                    number_after(statistics, "\n" + files + "active_file ", 0);
  const std::uint64_t held = used - std::min(used, reclaimable);
  return most - std::min(most, held);
}

/// The least of what this process's control group and those above it may still take, in both versions of the kernel's
/// interface. @param groups what /proc/self/cgroup says: "0::/path" or "4:memory:/path" a line
inline std::uint64_t available_in_groups(std::string_view groups, const std::string& root = "/sys/fs/cgroup") {
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
    // In a container the path may be the host's; the container's own root is looked at in any case.
    std::string path(line.substr(path_at + 1));
    for (;; path.erase(path.rfind('/'))) {
      const std::string folder = root + (first_version ? "/memory" : "") + (path == "/" ? "" : path);
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

/// Bytes, as the kernel estimates them: what is free or can be freed on this host, and no more than the control groups
/// leave. Asked before memory is allocated: the kernel ends processes where a memfd grows beyond it. No bound where it
/// is unknown.
inline std::uint64_t available_memory_bytes() {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t kibibytes = number_after(read_start("/proc/meminfo"), "MemAvailable:", unknown / 1024);
  return std::min(kibibytes > unknown / 1024 ? unknown : kibibytes * 1024,
                  available_in_groups(read_start("/proc/self/cgroup")));
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
