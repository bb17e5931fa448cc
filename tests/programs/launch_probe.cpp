// A worker under launch::PerNode that does what its arguments say, for tests of the launcher with real processes.
//   launch_probe --nproc-per-node=2 '*:join' '0:lines:1000' '1:raise:9'
// Each argument is RANK[@ATTEMPT]:ACTION[:VALUE], RANK a number or *; they are done in order. Then: leave, exit code 0.

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "dtrain/core/cause.hpp"
#include "dtrain/launch/per_node.hpp"
#include "dtrain/rendezvous/control/control_plane.hpp"
#include "support/early_threads.hpp"

namespace {

using ControlPlane = dtrain::rendezvous::ControlPlane;

/// Bytes to a standard descriptor, in one write where it takes them.
void put(int descriptor, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count < 0) {
      ::_exit(99);
    }
    done += static_cast<std::size_t>(count);
  }
}

/// Lines of different lengths, cut into writes at places that are not their ends.
void put_lines(int descriptor, int rank, int count) {
  std::string pending;
  for (int i = 0; i < count; ++i) {
    pending += "line " + std::to_string(i) + " of " + std::to_string(rank) + " " +
               std::string(static_cast<std::size_t>(i % 97), static_cast<char>('a' + rank)) + " end\n";
    if (pending.size() > static_cast<std::size_t>(i % 511)) {
      const std::size_t cut = pending.size() - static_cast<std::size_t>(i % 7);
      put(descriptor, pending.substr(0, cut));
      pending.erase(0, cut);
    }
  }
  put(descriptor, pending);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".part") << text << std::flush;
  if (std::rename((path + ".part").c_str(), path.c_str()) != 0) {
    ::_exit(99);
  }
}

void await_file(const std::string& path) {
  const auto deadline = dtrain::Deadline::after(std::chrono::seconds(60));
  while (::access(path.c_str(), F_OK) != 0 && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

void copy_input() {
  char bytes[4096];
  for (ssize_t count = 0; (count = ::read(STDIN_FILENO, bytes, sizeof bytes)) > 0;)
    put(STDOUT_FILENO, std::string(bytes, static_cast<std::size_t>(count)));
}

int wait_for_failure(ControlPlane& control_plane) {
  const auto deadline = dtrain::Deadline::after(std::chrono::seconds(60));
  while (!control_plane.failure()->failed() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const auto cause = control_plane.failure()->cause();
  put(STDERR_FILENO, "cause: " + (cause ? cause->sentence() : "none came") + "\n");
  return dtrain::exit_code_job_failed;
}

volatile std::sig_atomic_t exit_on_signal = 0;

struct Action {
  std::string name;
  std::string value;
};

/// What RANK[@ATTEMPT]:ACTION[:VALUE] asks of `rank`; an empty name where it asks another.
Action action_for(int rank, int attempt, const std::string& argument) {
  const std::size_t first = argument.find(':');
  const std::string given = argument.substr(0, first);
  const std::size_t at = given.find('@');
  const std::string who = given.substr(0, at);
  const bool other_attempt = at != std::string::npos && given.substr(at + 1) != std::to_string(attempt);
  if (first == std::string::npos || other_attempt || (who != "*" && who != std::to_string(rank))) return {};
  const std::size_t second = argument.find(':', first + 1);
  return {argument.substr(first + 1, second - first - 1),
          second == std::string::npos ? std::string() : argument.substr(second + 1)};
}

/// Does an action. @returns an exit code where it ends the process without leaving
std::optional<int> act(const Action& action, const dtrain::launch::RankProcess& worker,
                       std::unique_ptr<ControlPlane>& control_plane) {
  const int rank = worker.identity.rank;
  const int number = std::atoi(action.value.c_str());
  if (action.name == "join") {
    try {
      control_plane = std::make_unique<ControlPlane>(worker);
    } catch (const dtrain::JobFailed& failed) {
      put(STDERR_FILENO, std::string("cause: ") + failed.what() + "\n");
      return dtrain::exit_code_job_failed;
    }
  } else if (action.name == "leave") {
    control_plane->leave_blocking(dtrain::Deadline::after(std::chrono::seconds(60)));
    control_plane.reset();
  } else if (action.name == "lines") {
    put_lines(STDOUT_FILENO, rank, number);
  } else if (action.name == "error-lines") {
    put_lines(STDERR_FILENO, rank, number);
  } else if (action.name == "stdout") {
    put(STDOUT_FILENO, action.value);
  } else if (action.name == "stderr") {
    put(STDERR_FILENO, action.value + "\n");
  } else if (action.name == "environment") {
    const char* value = std::getenv(action.value.c_str());
    put(STDOUT_FILENO, action.value + "=" + (value == nullptr ? "(unset)" : value) + "\n");
  } else if (action.name == "arguments") {
    for (const char* each : worker.arguments())
      put(STDOUT_FILENO, std::string("argument ") + each + "\n");
  } else if (action.name == "run") {  // a program that the worker starts
    static_cast<void>(std::fflush(stdout));
    if (std::system(action.value.c_str()) != 0) return 98;
  } else if (action.name == "name") {  // what ps calls it
    std::string name;
    std::getline(std::ifstream("/proc/self/comm") >> std::ws, name);
    put(STDOUT_FILENO, "name " + name + "\n");
  } else if (action.name == "read-line") {
    std::string line;
    for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n';)
      line += byte;
    put(STDOUT_FILENO, "read " + line + "\n");
  } else if (action.name == "cat") {
    copy_input();
  } else if (action.name == "sleep") {
    std::this_thread::sleep_for(std::chrono::milliseconds(number));
  } else if (action.name == "raise") {
    std::raise(number);
  } else if (action.name == "say-signal") {
    std::signal(number, [](int) {
      constexpr char text[] = "got the signal\n";
      static_cast<void>(!::write(STDOUT_FILENO, text, sizeof text - 1));
    });
  } else if (action.name == "exit") {
    ::_exit(number);
  } else if (action.name == "ignore") {
    std::signal(number, SIG_IGN);
  } else if (action.name == "on-term") {
    exit_on_signal = number;
    std::signal(SIGTERM, [](int) { ::_exit(exit_on_signal); });
  } else if (action.name == "report") {
    control_plane->failure()->report({dtrain::CauseKind::exception, rank, "here", action.value});
    wait_for_failure(*control_plane);  // until the job knows
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return 1;
  } else if (action.name == "wait-for-failure") {
    return wait_for_failure(*control_plane);
  } else if (action.name == "signal-launcher-after-failure") {
    wait_for_failure(*control_plane);
    if (::kill(::getppid(), number) != 0) {
      ::_exit(99);
    }
  } else if (action.name == "early-threads") {
    put(STDOUT_FILENO, std::to_string(early_threads()) + " threads before main\n");
  } else if (action.name == "process") {
    write_file(action.value, std::to_string(::getpid()));
  } else if (action.name == "await") {
    await_file(action.value);
  } else if (action.name == "regroup") {
    if (::setpgid(0, ::getpgid(::getppid())) != 0) {
      ::_exit(99);
    }
  } else if (action.name == "zombie") {  // a process of nobody's that ends soon
    if (::fork() == 0) {
      static_cast<void>(::setsid());
      if (::fork() != 0) {
        ::_exit(0);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ::_exit(0);
    }
    while (::wait(nullptr) > 0) {
    }
  } else if (action.name ==
             "straggler") {  // it outlives its attempt, and joins with the settings of its start once VALUE.go is there
    if (::fork() == 0) {
      static_cast<void>(::setsid());
      await_file(action.value + ".go");
      std::string how = "it joined";
      try {
        const ControlPlane late(worker);
      } catch (const std::exception& error) {
        how = error.what();
      }
      write_file(action.value, how);
      ::_exit(0);
    }
  } else if (action.name == "grandchild") {
    if (::fork() == 0) {
      std::signal(SIGTERM, SIG_IGN);
      std::this_thread::sleep_for(std::chrono::seconds(60));
      ::_exit(0);
    }
  }
  return std::nullopt;
}

/// The launcher, or a worker.
int run(int argc, char** argv) {
  const dtrain::launch::StartResult start = dtrain::launch::PerNode::start(argc, argv);
  if (!start.worker) return start.exit_code;
  std::unique_ptr<ControlPlane> control_plane;
  const dtrain::identity::ProcessIdentity& who = start.worker->identity;
  for (const char* argument : start.worker->arguments().subspan(1)) {
    if (const auto code = act(action_for(who.rank, who.attempt, argument), *start.worker, control_plane)) {
      ::_exit(*code);
    }
  }
  if (control_plane) {
    control_plane->leave_blocking(dtrain::Deadline::after(std::chrono::seconds(60)));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (early_threads() < 0) return 97;
  if (const char* library = std::getenv("PROBE_EARLY_LIBRARY")) {  // a made-up driver
    if (::dlopen(library, RTLD_NOW | RTLD_LOCAL) == nullptr) return 96;
  }
  if (std::getenv("PROBE_EARLY_MPI") != nullptr) {  // what a program must not do before it becomes a launcher
    const auto initialise = reinterpret_cast<int (*)(int*, char***)>(::dlsym(RTLD_DEFAULT, "MPI_Init"));
    if (initialise == nullptr) {
      put(STDERR_FILENO, "built without MPI\n");
      return 95;
    }
    if (initialise(&argc, &argv) != 0) return 94;
  }
  if (std::getenv("PROBE_RUN_ON_THREAD") != nullptr) {
    int exit_code = 0;
    std::jthread([&] { exit_code = run(argc, argv); }).join();
    return exit_code;
  }
  return run(argc, argv);
}
