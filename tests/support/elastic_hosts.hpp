#pragma once
/// @file
/// ElasticHosts: an elastic job of tests/programs/elastic_training over Gloo, with a launcher on each of two hosts.

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/contains.hpp"
#include "support/free_port.hpp"
#include "support/launch_probe.hpp"
#include "support/leftovers.hpp"
#include "support/program.hpp"
#include "support/virtual_cluster.hpp"

namespace support {

class ElasticHosts {
 public:
  /// Starts both launchers. Lifetime: the cluster outlives it.
  /// @param cluster of two hosts; if there is none, each node is a host of its own by its DTRAIN_HOST_ID only
  /// @param arguments further ones of each launcher
  ElasticHosts(const VirtualCluster& cluster, std::vector<std::string> arguments, const std::string& liveness_seconds,
               const std::string& timeout_seconds = "20")
      : cluster_(cluster),
        arguments_(std::move(arguments)),
        liveness_seconds_(liveness_seconds),
        timeout_seconds_(timeout_seconds) {
    for (const int node : {0, 1}) {
      start(node);
    }
  }

  bool has_links() const { return cluster_.problem.empty(); }

  /// Starts a launcher of the node. @param rank its --node-rank; empty: the node @param host where; -1: the node's
  void start(int node, const std::string& rank = "", int host = -1) {
    Node& place = nodes_[static_cast<std::size_t>(node)];
    if (place.launcher) place.earlier_output += place.launcher->wait(soon()).output;
    std::vector<std::string> all{"--nnodes=1:2",
                                 "--node-rank=" + (rank.empty() ? std::to_string(node) : rank),
                                 "--master-addr=" + std::string(has_links() ? "host0" : "127.0.0.1"),
                                 "--master-port=" + std::to_string(port_),
                                 "log",
                                 "gloo",
                                 mark_};
    all.insert(all.end(), arguments_.begin(), arguments_.end());
    Program::Variables variables{{"DTRAIN_SECRET", "0123456789abcdef0123456789abcdef"},
                                 {"DTRAIN_LIVENESS_SECONDS", liveness_seconds_},
                                 {"DTRAIN_TIMEOUT_SECONDS", timeout_seconds_}};
    if (has_links()) {
      place.launcher = cluster_.start(host < 0 ? node : host, training, all, variables);
    } else {
      variables["DTRAIN_HOST_ID"] = "host" + std::to_string(node);
      place.launcher = std::make_unique<Program>(training, all, variables);
    }
    place.launcher->close_input();
  }

  Program& launcher(int node) { return *nodes_[static_cast<std::size_t>(node)].launcher; }

  /// What all launchers of the node have written on stdout, as far as it was read.
  std::string output(int node) {
    const Node& place = nodes_[static_cast<std::size_t>(node)];
    return place.earlier_output + place.launcher->output();
  }

  /// Reads what both launchers write.
  void read(std::chrono::milliseconds time) {
    for (const int node : {0, 1}) {  // no line has this text
      static_cast<void>(launcher(node).wait_for("\n\n", dtrain::Deadline::after(time / 2)));
    }
  }

  /// Processes of the node: its workers, and its launcher.
  std::vector<pid_t> processes(int node, bool with_launcher) const {
    const std::string host = "DTRAIN_HOST_ID=host" + std::to_string(node);
    std::vector<pid_t> found = has_links() ? cluster_.processes_of(node, mark_) : processes_with(mark_);
    std::erase_if(found, [&](pid_t process) {
      const std::string environment = environment_of(process);
      const std::string command = content("/proc/" + std::to_string(process) + "/cmdline");
      const bool is_program = command.rfind(training, 0) == 0;  // and not what has started it on its host
      const bool is_worker = contains(environment, "DTRAIN_LAUNCHER_PROCESS=");
      return !is_program || (!has_links() && !contains(environment, host)) || (!is_worker && !with_launcher);
    });
    return found;
  }

  /// The process on the node that has this number there; 0: there is none.
  pid_t process_of(int node, pid_t number) const {
    for (const pid_t process : processes(node, false)) {
      std::istringstream status(content("/proc/" + std::to_string(process) + "/status"));
      for (std::string word; status >> word;) {
        if (word != "NSpid:") continue;
        std::string numbers;
        std::getline(status, numbers);
        if (std::stol(numbers.substr(numbers.find_last_of(" \t") + 1)) == number) return process;
      }
    }
    return 0;
  }

  /// The ends of both launchers.
  std::vector<Result> results(std::chrono::seconds time = std::chrono::seconds(30)) {
    std::vector<Result> found;
    for (const int node : {0, 1}) {
      found.push_back(launcher(node).wait(soon(time)));
      found.back().output = output(node);
    }
    return found;
  }

 private:
  static inline const std::string training = DTRAIN_TEST_PROGRAMS_DIR "/elastic_training";

  struct Node {
    std::unique_ptr<Program> launcher;
    std::string earlier_output;
  };

  const VirtualCluster& cluster_;
  const std::vector<std::string> arguments_;
  const std::string liveness_seconds_;
  const std::string timeout_seconds_;
  const std::string mark_ = new_mark();
  const int port_ = cluster_.problem.empty() ? 29500 : free_port();
  std::array<Node, 2> nodes_;
};

inline void signal_all(const std::vector<pid_t>& processes, int signal) {
  for (const pid_t each : processes) {
    ::kill(each, signal);
  }
}

}  // namespace support
