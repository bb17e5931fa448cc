#pragma once
/// @file
/// WorkerProgram of a launcher's options: a worker's command line, with loader and --wrap. Worker environment: its
/// variables.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/configuration/core_binding.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Values that the workers of a node share.
struct NodePlan {
  DTRAIN_MEMBERS_NOT_INLINED(NodePlan);

  int workers = 1;
  int first_rank = 0;  ///< number of workers of nodes with a lower node rank
  int world_size = 1;  ///< number of workers of all nodes
  int min_ranks = 0;   ///< least ranks of an elastic job, whose workers start without a rank; 0: the job is not elastic
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr;
  int master_port = 0;
  std::string secret;               ///< secret of the job's store; empty if the launcher's environment has it
  int attempt = 0;                  ///< number of earlier starts of the workers
  int cores = 1;                    ///< cores of this node, for all workers
  bool is_bound = false;            ///< whether each worker may use some of the cores only
  std::string launcher_process;     ///< its process id
  bool stdout_is_terminal = false;  ///< whether the launcher's is
  bool stderr_is_terminal = false;  ///< whether the launcher's is
};

namespace detail {

/// Whether the variable describes the launcher's process as a rank of MPI or torchrun. Workers must not inherit it.
inline bool describes_the_launcher(std::string_view variable) noexcept {
  constexpr std::array<std::string_view, 4> prefixes{"OMPI_COMM_WORLD_", "PMI", "MV2_", "TORCHELASTIC_"};
  return variable == "DTRAIN_LAUNCHER" || variable == "DTRAIN_WRAPPED" || variable == "PALS_RANKID" ||
         std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return variable.substr(0, prefix.size()) == prefix; });
}

}  // namespace detail

/// The environment of one worker. @param base the launcher's own environment
inline identity::Environment worker_environment(const identity::Environment& base, const NodePlan& plan,
                                                int local_rank) {
  identity::Environment environment;
  for (const auto& [variable, value] : base) {
    if (!detail::describes_the_launcher(variable)) {
      environment.emplace(variable, value);
    }
  }
  const std::array<std::pair<const char*, std::string>, 7> common{{
      {"RANK", std::to_string(plan.first_rank + local_rank)},
      {"WORLD_SIZE", std::to_string(plan.world_size)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(plan.workers)},
      {"NODE_RANK", std::to_string(plan.node_rank)},
      {"MASTER_ADDR", plan.master_addr},
      {"MASTER_PORT", std::to_string(plan.master_port)},
  }};
  for (const auto& [variable, value] : common) {
    environment[variable] = value;
    environment[std::string("DTRAIN_") + variable] = value;
  }
  if (plan.min_ranks != 0) {
    for (const char* const name : {"RANK", "WORLD_SIZE", "DTRAIN_RANK"}) {
      environment.erase(name);
    }
    environment["DTRAIN_WORLD_SIZE"] = format_text("{}:{}", {plan.min_ranks, plan.world_size});
  }
  environment["DTRAIN_NODE_COUNT"] = std::to_string(plan.node_count);
  environment["DTRAIN_ATTEMPT"] = std::to_string(plan.attempt);
  environment["DTRAIN_LAUNCHER_PROCESS"] = plan.launcher_process;
  environment["DTRAIN_STDOUT_IS_TERMINAL"] = plan.stdout_is_terminal ? "1" : "0";
  environment["DTRAIN_STDERR_IS_TERMINAL"] = plan.stderr_is_terminal ? "1" : "0";
  environment.erase("DTRAIN_NODE_CORES");  // the variable of a launcher around this one
  if (plan.is_bound) {
    environment["DTRAIN_NODE_CORES"] = std::to_string(plan.cores);
  }
  if (!plan.secret.empty()) {
    environment["DTRAIN_SECRET"] = plan.secret;
    environment.erase("DTRAIN_SECRET_FILE");
  }
  if (std::string& threads = environment["OMP_NUM_THREADS"]; threads.empty()) {
    threads = std::to_string(std::max(1, plan.cores / plan.workers));
  }
  return environment;
}

/// The environment of a launcher, without the identity of a worker of another job that may have started it.
inline identity::Environment without_outer_job(const identity::Environment& environment) {
  if (environment.count("DTRAIN_LAUNCHER_PROCESS") == 0) {
    return environment;
  }
  identity::Environment outside = environment;
  for (const std::string name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NODE_COUNT", "NODE_CORES", "MASTER_ADDR",
        "MASTER_PORT", "LAUNCHER_PROCESS", "ATTEMPT", "REPORT_DESCRIPTOR"}) {
    outside.erase(name);
    outside.erase(format_text("DTRAIN_{}", {name}));
  }
  return outside;
}

/// Whether DTRAIN_WORLD_SIZE is MIN:MAX.
inline bool is_elastic_worker(const identity::Variables& variables) {
  return identity::is_range(variables.text("DTRAIN_WORLD_SIZE").value_or(""));
}

/// Whether this is the environment of a worker that the process `parent` started itself. A child of a worker inherits
/// the variables, but has another parent.
inline bool is_worker_environment(const identity::Environment& environment, long parent) {
  const identity::Variables variables(environment);
  const bool is_rank = variables.has("DTRAIN_RANK") || is_elastic_worker(variables);
  return is_rank && variables.text("DTRAIN_LAUNCHER_PROCESS") == std::to_string(parent);
}

/// The descriptor for a worker's report of an elastic job's end, if its launcher does not have the store.
inline constexpr const char* report_variable = "DTRAIN_REPORT_DESCRIPTOR";

/// Set in a wrapped worker's environment. The worker unsets it, because its own children are no workers.
inline constexpr const char* wrapped_variable = "DTRAIN_WRAPPED";

/// The launcher's process id from the environment of a wrapped worker; nullopt for other processes. Pure.
inline std::optional<pid_t> launcher_of_wrapped(const identity::Environment& environment) {
  const identity::Variables variables(environment);
  const std::optional<std::string_view> launcher = variables.text("DTRAIN_LAUNCHER_PROCESS");
  const bool is_rank = variables.has("DTRAIN_RANK") || is_elastic_worker(variables);
  const bool is_wrapped = variables.has(wrapped_variable) && is_rank && launcher;
  return is_wrapped ? std::optional<pid_t>(identity::parse_integer(*launcher)) : std::nullopt;
}

/// The program that each attempt starts, and its options.
struct WorkerProgram {
  std::vector<std::string> loader;     ///< see loader_of
  std::vector<std::string> wrapper;    ///< --wrap, its program's path first; empty: no wrapper
  std::optional<int> wrapped_rank;     ///< --wrap-rank; nullopt: every rank is wrapped
  std::vector<std::string> arguments;  ///< the program's name first
  identity::Environment environment;
  std::optional<std::string> log_dir;
  std::vector<Cpus> cpus;  ///< CPUs of each worker of this node; empty: not bound
  bool folds = true;       ///< a message of several ranks is printed once (see LineFold)

  bool wraps(int rank) const { return !wrapper.empty() && wrapped_rank.value_or(rank) == rank; }
};

/// An executable file and its argv.
struct CommandLine {
  std::string executable;
  std::vector<std::string> arguments;
};

/// Path for executing this process's program again: the program's path, which `ps` then shows for workers. If the
/// program's file was replaced or deleted: /proc/self/exe, the kernel's link to the file that runs here.
/// valgrind and qemu answer these system calls for the program that they run.
inline std::string own_program() {
  const std::string path = link_target("/proc/self/exe");
  const Descriptor running(::open("/proc/self/exe", O_PATH | O_CLOEXEC));
  struct ::stat file {};
  struct ::stat found {};
  const bool is_there = running && ::fstat(running.get(), &file) == 0 && ::stat(path.c_str(), &found) == 0 &&
                        file.st_dev == found.st_dev && file.st_ino == found.st_ino;
  return is_there ? path : "/proc/self/exe";
}

/// The words before `argv` on this process's command line: `ld.so --library-path DIR` if a loader runs the program;
/// usually empty. Pure.
/// @param command_line /proc/self/cmdline: each word ends with '\0'
inline std::vector<std::string> loader_of(std::string_view command_line, const std::vector<std::string>& argv) {
  std::vector<std::string> words;
  while (!command_line.empty()) {
    words.emplace_back(next_entry(command_line, '\0'));
  }
  const bool is_its_end = words.size() > argv.size() && std::equal(argv.rbegin(), argv.rend(), words.rbegin());
  words.resize(is_its_end ? words.size() - argv.size() : 0);
  return words;
}

/// loader_of() for this process.
inline std::vector<std::string> own_loader(const std::vector<std::string>& argv) {
  const std::string command_line = SystemFiles().text("/proc/self/cmdline").value_or("");
  const bool is_whole = command_line.size() < SystemFiles::most_bytes;
  return loader_of(is_whole ? std::string_view(command_line) : std::string_view(), argv);
}

/// The path of --wrap's program, found by PATH as in a shell. @throws Error (usage) if there is none
inline std::string wrapper_path(const std::string& name, const identity::Environment& environment) {
  const auto is_program = [](const std::string& path) {
    struct ::stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
  };
  const std::string_view path = identity::Variables(environment).text("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  std::string_view folders = name.find('/') == std::string::npos ? std::string_view(path) : std::string_view();
  while (!folders.empty()) {
    const std::string_view folder = next_entry(folders, ':');
    const std::string found = format_text("{}/{}", {folder.empty() ? "." : folder, name});
    if (is_program(found)) {
      return found;
    }
  }
  if (name.find('/') == std::string::npos || !is_program(name)) {
    throw_error(
        Errc::usage,
        "--wrap is to put {} in front of the workers, and there is no such program; install it, or give its path",
        {in_quotes(name, 256)});
  }
  return name;
}

/// The command line that starts a rank. Call it for each start: if the program's file is replaced between two attempts,
/// the launcher keeps starting the program that it runs itself.
inline CommandLine command_line_of(const WorkerProgram& program, int rank) {
  CommandLine command;
  command.executable = own_program();
  command.arguments = program.loader;
  command.arguments.insert(command.arguments.end(), program.arguments.begin(), program.arguments.end());
  if (program.wraps(rank)) {
    // In a wrapper, /proc/self would be the wrapper.
    const bool is_link = command.executable == "/proc/self/exe";
    command.arguments.front() = is_link ? format_text("/proc/{}/exe", {::getpid()}) : command.executable;
    command.executable = program.wrapper.front();
    command.arguments.insert(command.arguments.begin(), program.wrapper.begin(), program.wrapper.end());
  }
  return command;
}

}  // namespace DTRAIN_NAMESPACE::launch
