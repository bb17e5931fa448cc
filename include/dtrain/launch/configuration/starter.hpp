#pragma once
/// @file
/// Starter: the process that started a rank; its nearest ancestor that is not a wrapper of this rank only.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/launch/diagnostics/system_files.hpp"
#include "dtrain/launch/supervise/process_tree.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A process id and its start time, which together distinguish the process from a later one with the same id.
struct Starter {
  std::int64_t process = 0;
  std::uint64_t began = 0;
  std::string name;     ///< "hydra_pmi_proxy"
  std::string command;  ///< its arguments, each followed by a zero byte
};

namespace detail {

/// Whether a block of entries, each followed by a zero byte, contains this entry.
inline bool has_entry(std::string_view block, std::string_view entry) {
  while (!block.empty()) {
    const std::string_view each = block.substr(0, block.find('\0'));
    if (each == entry) {
      return true;
    }
    block.remove_prefix(std::min(each.size() + 1, block.size()));
  }
  return false;
}

}  // namespace detail

/// Flag on the command line of a proxy of MPICH's mpiexec.
inline constexpr std::string_view hydra_proxy_flag("--control-port\0", 15);

/// The nearest ancestor without `rank_entry` in its environment; nullopt if /proc cannot be read. Wrapper scripts that
/// a launcher starts for each rank have the entry, their starter does not. Exception: a proxy of MPICH's mpiexec may
/// have it, if another launcher started the proxy as a rank; the proxy is the starter in any case.
/// @param parent of this process; 0: the parent is outside its PID namespace
/// @param rank_entry "PMI_RANK=3"; empty: returns the parent
inline std::optional<Starter> starter_of(const SystemFiles& files, std::int64_t parent, const std::string& rank_entry) {
  constexpr int deepest = 64;
  constexpr std::size_t most_environment = std::size_t{1} << 20;
  std::int64_t process = parent;
  for (int depth = 0; depth < deepest && process > 0; ++depth) {
    const std::string folder = "/proc/" + std::to_string(process);
    const auto status = detail::parse_process_status(files.text(folder + "/stat").value_or(""));
    if (!status) {
      return std::nullopt;
    }
    const std::string environment =
        rank_entry.empty() ? "" : files.text(folder + "/environ", most_environment).value_or("");
    std::string command = files.text(folder + "/cmdline").value_or("");
    if (!detail::has_entry(environment, rank_entry) || command.find(hydra_proxy_flag) != std::string::npos) {
      return Starter{process, status->began, status->name, std::move(command)};
    }
    process = status->parent;
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::launch
