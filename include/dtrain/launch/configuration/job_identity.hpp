#pragma once
/// @file
/// Job identity: name and origin of the job of this process, by which the store distinguishes jobs.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/launch/configuration/program_build.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"
#include "dtrain/launch/supervise/process_tree.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"

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
    const std::string folder = format_text("/proc/{}", {process});
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

/// The job's name (empty if it has none), and further properties that distinguish it from other jobs.
struct JobIdentity {
  std::string name;
  rendezvous::Origin origin;
};

/// A job of MPICH's mpiexec has no name that a process can read, but all mpiexec proxies connect to the same address.
/// @param command as in Starter. @returns "hydra=host-a:43789"; nullopt if the command is no such proxy
inline std::optional<std::string> hydra_job(std::string_view command) {
  const std::size_t at = command.find(hydra_proxy_flag);
  const std::string_view rest = at == std::string_view::npos ? "" : command.substr(at + hydra_proxy_flag.size());
  const std::string_view address = rest.substr(0, rest.find('\0'));
  return address.empty() ? std::nullopt : std::optional(format_text("hydra={}", {address}));
}

/// The job's identity from the environment and, if it has several ranks, from the process's program and starter.
/// Blocking: reads files of the kernel.
inline JobIdentity job_identity(const identity::Variables& variables, const identity::ProcessIdentity& identity,
                                const SystemFiles& files = SystemFiles()) {
  JobIdentity job;
  job.name = identity.job.value_or("");
  if (identity.world_size == 1) {
    return job;
  }
  rendezvous::Origin& origin = job.origin;
  origin.is_exact_job = identity.is_exact_job;
  origin.one_starter = identity.one_starter;
  origin.program = own_program_name();
  origin.build = own_build();
  struct ::stat space {};
  origin.process_space = ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
  // torchrun's agent may have its own RANK, the node's, but it has no run id.
  const std::string own_variable = identity.elastic ? "TORCHELASTIC_RUN_ID" : identity.rank_variable;
  const std::optional<std::string_view> own_value = variables.text(own_variable);
  const std::optional<Starter> starter =
      starter_of(files, ::getppid(), own_value ? format_text("{}={}", {own_variable, *own_value}) : "");
  if (starter) {
    origin.starter = starter->process;
    origin.starter_began = starter->began;
    origin.starter_name = starter->name;
    const std::optional<std::string> hydra =
        identity.is_exact_job || identity.rank_variable != "PMI_RANK" ? std::nullopt : hydra_job(starter->command);
    origin.is_exact_job = identity.is_exact_job || hydra;
    job.name = hydra.value_or(job.name);
  }
  return job;
}

}  // namespace DTRAIN_NAMESPACE::launch
