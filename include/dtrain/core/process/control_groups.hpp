#pragma once
/// @file
/// Control groups (cgroups) of this process, in versions 1 and 2 of the kernel's interface.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

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

/// The first 4096 bytes of a kernel file; empty if it cannot be read.
std::string read_start(const std::string& path);

/// The number after `label` in `text`; `otherwise` if there is none.
std::uint64_t number_after(std::string_view text, std::string_view label, std::uint64_t otherwise) noexcept;

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

#include "dtrain/core/process/small_file.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// Whether a list "cpu,cpuacct" has the name.
inline bool lists(std::string_view names, std::string_view name) noexcept {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(','), names.size());
    if (names.substr(0, end) == name) {
      return true;
    }
    names.remove_prefix(std::min(names.size(), end + 1));
  }
  return false;
}

}  // namespace detail

DTRAIN_DEFINED std::vector<ControlGroup> control_groups(std::string_view groups, std::string_view controller,
                                                        const std::string& root) {
  std::vector<ControlGroup> found;
  while (!groups.empty()) {
    const std::size_t end = std::min(groups.find('\n'), groups.size());
    const std::string_view line = groups.substr(0, end);
    groups.remove_prefix(std::min(groups.size(), end + 1));
    const std::size_t name = line.find(':');
    const std::size_t path_at = name == std::string_view::npos ? name : line.find(':', name + 1);
    if (path_at == std::string_view::npos) {
      continue;
    }
    const bool is_first_version = detail::lists(line.substr(name + 1, path_at - name - 1), controller);
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

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
