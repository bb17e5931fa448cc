#pragma once
/// @file
/// SlurmOnHosts: a Slurm whose nodes are the hosts of a virtual cluster.

#include <signal.h>

#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/program.hpp"
#include "support/slurm_files.hpp"
#include "support/virtual_cluster.hpp"

namespace support {

/// munged and slurmctld on host0, slurmd on each host, as long as this lives. `problem` says why there is none.
class SlurmOnHosts {
 public:
  /// Lifetime: the cluster outlives it, and what still runs on the hosts ends with the cluster.
  SlurmOnHosts(const VirtualCluster& cluster, int hosts)
      : problem(cluster.problem.empty() ? SlurmFiles::missing() : cluster.problem), cluster_(cluster) {
    if (!problem.empty()) return;
    std::map<std::string, std::string> addresses;
    std::string idle;
    for (int host = 0; host < hosts; ++host) {
      addresses[VirtualCluster::host(host)] = VirtualCluster::address(host);
      idle += VirtualCluster::host(host) + " idle\n";
    }
    files_.write("root", addresses);  // the hosts' user
    daemons_.push_back(cluster_.start(0, find_program("munged"), files_.munged_arguments()));
    daemons_.push_back(cluster_.start(0, find_program("slurmctld"), {"-D", "-i"}, files_.variables()));
    for (int host = 0; host < hosts; ++host) {
      daemons_.push_back(cluster_.start(host, find_program("slurmd"), {"-D"}, files_.variables()));
    }
    const auto states = [this] { return run("sinfo", {"-h", "-N", "-o", "%N %t"}).output; };
    if (!SlurmFiles::becomes(states, idle)) problem = files_.problem_of_start();
  }
  ~SlurmOnHosts() {
    for (auto daemon = daemons_.rbegin(); daemon != daemons_.rend(); ++daemon) {
      (*daemon)->signal(SIGTERM);
    }
    for (const std::unique_ptr<Program>& daemon : daemons_) {
      daemon->wait(soon(std::chrono::seconds(5)));
    }
  }
  SlurmOnHosts(const SlurmOnHosts&) = delete;
  SlurmOnHosts& operator=(const SlurmOnHosts&) = delete;

  /// Starts srun on host0.
  std::unique_ptr<Program> srun(const std::vector<std::string>& arguments, Program::Variables variables) const {
    variables.merge(files_.variables());
    std::unique_ptr<Program> started = cluster_.start(0, find_program("srun"), arguments, variables);
    started->close_input();
    return started;
  }

  /// The node crashes: its slurmd, the steps' slurmstepds and all processes with `mark` are killed, and the controller
  /// has noticed it. @returns whether it has
  bool crash(int host, const std::string& mark) const {
    for (const std::string& of : {mark, std::string("slurm")}) {
      for (const pid_t process : cluster_.processes_of(host, of)) {
        ::kill(process, SIGKILL);
      }
    }
    const std::string node = VirtualCluster::host(host);
    run("scontrol", {"update", "NodeName=" + node, "State=DOWN", "Reason=crash"});  // SlurmdTimeout later by itself
    const auto state = [&] { return run("sinfo", {"-h", "-n", node, "-o", "%t"}).output.substr(0, 4); };
    return SlurmFiles::becomes(state, "down");
  }

  std::string problem;

 private:
  /// Runs one of Slurm's commands on host0.
  Result run(const std::string& command, const std::vector<std::string>& arguments) const {
    return cluster_.run(0, find_program(command), arguments, files_.variables());
  }

  const VirtualCluster& cluster_;
  const SlurmFiles files_;
  std::vector<std::unique_ptr<Program>> daemons_;
};

}  // namespace support
