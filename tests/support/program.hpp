#pragma once
// Runs a real program for a test: arguments, environment and stdin in; output, exit status and what is left of it out.

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "support/sanitized.hpp"
#include "support/stopwatch.hpp"

namespace support {

/// A deadline of a test, longer where a sanitizer slows everything.
inline dtrain::Deadline soon(std::chrono::milliseconds time = std::chrono::seconds(20)) {
  return dtrain::Deadline::after(time * (is_sanitized ? 3 : 1));
}

/// The processes, zombies left out, whose command line has `mark` in it; this one is not counted.
inline std::vector<pid_t> processes_with(const std::string& mark) {
  std::vector<pid_t> found;
  DIR* directory = ::opendir("/proc");
  if (directory == nullptr) throw std::runtime_error("reading /proc");
  while (const dirent* entry = ::readdir(directory)) {
    const auto process = static_cast<pid_t>(std::atoi(entry->d_name));
    if (process <= 0 || process == ::getpid()) continue;
    std::ifstream file("/proc/" + std::to_string(process) + "/cmdline", std::ios::binary);
    std::ostringstream line;  // which takes it well that the process ends meanwhile
    line << file.rdbuf();
    if (line.str().find(mark) != std::string::npos) {
      found.push_back(process);
    }
  }
  ::closedir(directory);
  return found;
}

/// A process's children in the order in which its main thread started them: a launcher's workers, by rank.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;)
    children.push_back(child);
  return children;
}

/// Whether by the deadline no process has `mark` in its command line.
inline bool all_gone(const std::string& mark, dtrain::Deadline deadline) {
  while (!processes_with(mark).empty()) {
    if (deadline.passed()) return false;
    ::usleep(5000);
  }
  return true;
}

/// The path of a program in PATH, /usr/sbin or /sbin; empty where there is none.
inline std::string find_program(const std::string& name) {
  const char* const path = ::getenv("PATH");
  std::string folders = std::string(path == nullptr ? "" : path) + ":/usr/sbin:/sbin:";
  while (!folders.empty()) {
    const std::size_t colon = folders.find(':');
    const std::string candidate = folders.substr(0, colon) + "/" + name;
    if (colon != 0 && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    folders.erase(0, colon + 1);
  }
  return "";
}

struct Result {
  int exit_code = -1;  ///< 128 + signal where a signal ended it; -1 where it had not ended by the deadline
  std::string output;
  std::string error;
  std::chrono::milliseconds time{0};  ///< that it took, as a Stopwatch has it
};

/// Started by its construction; killed, if need be, by its destruction.
class Program {
 public:
  using Variables = std::map<std::string, std::string>;

  /// @param variables are added to this process's environment; an empty value takes one out of it
  Program(const std::string& path, std::vector<std::string> arguments, const Variables& variables = {}) {
    arguments.insert(arguments.begin(), path);
    std::vector<char*> pointers;
    for (std::string& argument : arguments)
      pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    for (auto& pipe : pipes_) {
      if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error("creating a pipe");
    }
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    process_ = ::fork();
    if (process_ == 0) {
      forget_handlers();
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (process_ < 0) throw std::runtime_error("forking");
    if (process_ == 0) {
      for (const auto& [name, value] : variables)
        value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
      ::dup2(pipes_[0][0], 0);
      ::dup2(pipes_[1][1], 1);
      ::dup2(pipes_[2][1], 2);
      ::execv(path.c_str(), pointers.data());
      ::_exit(127);
    }
    close(pipes_[0][0]);
    close(pipes_[1][1]);
    close(pipes_[2][1]);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
    for (auto& pipe : pipes_) {
      close(pipe[0]);
      close(pipe[1]);
    }
  }

  pid_t process() const { return process_; }
  void signal(int number) const { ::kill(process_, number); }

  /// Small enough for a pipe to take at once.
  void write_input(const std::string& text) const {
    if (::write(pipes_[0][1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      throw std::runtime_error("writing to a program's stdin");
    }
  }
  void close_input() { close(pipes_[0][1]); }

  /// Reads what it writes until `text` has come on stdout or stderr. @returns whether it has by the deadline
  bool wait_for(const std::string& text, dtrain::Deadline deadline = soon()) {
    while (result_.output.find(text) == std::string::npos && result_.error.find(text) == std::string::npos) {
      if (!read_some(deadline)) return false;
    }
    return true;
  }

  /// What has been read of its stdout so far.
  const std::string& output() const noexcept { return result_.output; }

  /// Closes its input, and waits.
  Result finish(dtrain::Deadline deadline = soon()) {
    close_input();
    return wait(deadline);
  }

  /// Reads to the end of its output and reaps it.
  Result wait(dtrain::Deadline deadline = soon()) {
    while (read_some(deadline)) {
    }
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(process_, &status, WNOHANG)) == 0 && !deadline.passed())
      ::usleep(1000);
    if (ended == process_) {
      process_ = 0;
      result_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    result_.time = watch_.elapsed();
    return result_;
  }

 private:
  /// A signal that comes before exec must not find this program's handlers: doctest's would report a crash. A program
  /// also inherits what is ignored: nohup ignores SIGHUP, and a script's background job SIGINT and SIGQUIT.
  static void forget_handlers() {
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
      static_cast<void>(std::signal(number, SIG_DFL));
    }
  }

  static void close(int& descriptor) {
    if (descriptor >= 0) {
      ::close(std::exchange(descriptor, -1));
    }
  }

  /// False at the end of both streams, or at the deadline.
  bool read_some(dtrain::Deadline deadline) {
    std::array<pollfd, 2> waiting{pollfd{pipes_[1][0], POLLIN, 0}, pollfd{pipes_[2][0], POLLIN, 0}};
    if (pipes_[1][0] < 0 && pipes_[2][0] < 0) return false;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()).count();
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(left)) <= 0) return false;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      char bytes[65536];
      const ssize_t count = ::read(waiting[i].fd, bytes, sizeof bytes);
      if (count > 0) {
        (i == 0 ? result_.output : result_.error).append(bytes, static_cast<std::size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        close(pipes_[i + 1][0]);
      }
    }
    return true;
  }

  Stopwatch watch_;
  std::array<std::array<int, 2>, 3> pipes_{{{-1, -1}, {-1, -1}, {-1, -1}}};
  pid_t process_ = 0;
  Result result_;
};

inline Result run(const std::string& path, std::vector<std::string> arguments, const Program::Variables& variables = {},
                  std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  Program program(path, std::move(arguments), variables);
  return program.finish(soon(patience));
}

/// The Python with the packages that a test compares with; a test is skipped where they are missing.
inline std::string peer_python() {
  const char* const given = std::getenv("DTRAIN_PEER_PYTHON");
  return given == nullptr ? "/usr/bin/python3" : given;
}

}  // namespace support
