#pragma once
/// @file
/// Worker program: the command line by which NodeLauncher starts a worker, with its loader and the command of --wrap.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/core/text/split.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/configuration/core_binding.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The program that each attempt starts, and its options.
struct WorkerProgram {
  std::vector<std::string> loader;     ///< see loader_of
  std::vector<std::string> wrapper;    ///< --wrap, its program's path first; empty: no wrapper
  std::optional<int> wrapped_rank;     ///< --wrap-rank; nullopt: every rank is wrapped
  std::vector<std::string> arguments;  ///< the program's name first
  identity::Environment environment;
  std::optional<std::string> log_dir;
  std::vector<Cpus> cpus;  ///< of each worker of this node; empty: not bound
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
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  const Descriptor running(::open("/proc/self/exe", O_PATH | O_CLOEXEC));
  struct ::stat file {};
  struct ::stat found {};
  path.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  const bool is_there = running && ::fstat(running.get(), &file) == 0 && ::stat(path.c_str(), &found) == 0 &&
                        file.st_dev == found.st_dev && file.st_ino == found.st_ino;
  return is_there ? path : "/proc/self/exe";
}

/// The words before `argv` on this process's command line, such as `ld.so --library-path DIR` if a loader runs the
/// program; usually empty. Pure.
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
