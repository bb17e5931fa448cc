#pragma once
/// @file
/// SlurmFiles: configuration, keys, state and logs of a Slurm, in a folder of a test's own.

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "support/free_port.hpp"
#include "support/program.hpp"
#include "support/temporary_directory.hpp"

namespace support {

class SlurmFiles {
 public:
  /// Why there can be no Slurm here; empty if it is installed.
  static std::string missing() {
    for (const char* needed : {"munged", "slurmctld", "slurmd", "srun", "sinfo", "scontrol"}) {
      if (find_program(needed).empty()) return std::string("Slurm is not installed: there is no ") + needed;
    }
    return "";
  }

  /// @param user who runs the daemons @param addresses of the nodes, by their names; the first one has the controller
  void write(const std::string& user, const std::map<std::string, std::string>& addresses) const {
    ::chmod(folder_.path.c_str(), 0755);  // tasks reach munge's socket in it
    std::ofstream(in("munge.key")) << "a key of 32 bytes, of no secrecy..";
    ::chmod(in("munge.key").c_str(), 0600);
    ::mkdir(in("state").c_str(), 0755);
    // No control group is used: without this line slurmd wants to see those of the machine.
    std::ofstream(in("cgroup.conf")) << "CgroupPlugin=cgroup/v1\n";
    std::ofstream file(in("slurm.conf"));
    const auto& controller = *addresses.begin();
    file << "ClusterName=dtrain\nSlurmctldHost=" << controller.first << "(" << controller.second << ")\n"
         << "SlurmctldPort=" << free_port() << "\nSlurmdPort=" << free_port() << "\n"
         << "SlurmUser=" << user << "\nSlurmdUser=" << user << "\n"
         << "AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket=" << in("munge.socket") << "\n"
         << "StateSaveLocation=" << in("state") << "\nSlurmdSpoolDir=" << in("spool-%n") << "\n"
         << "SlurmctldPidFile=" << in("slurmctld.pid") << "\nSlurmdPidFile=" << in("slurmd-%n.pid") << "\n"
         << "SlurmctldLogFile=" << in("slurmctld.log") << "\nSlurmdLogFile=" << in("slurmd-%n.log") << "\n"
         << "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
         << "JobAcctGatherType=jobacct_gather/none\nReturnToService=2\n"
         << "AccountingStorageType=accounting_storage/none\n"
         << "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
    for (const auto& [node, address] : addresses) {
      ::mkdir(in("spool-" + node).c_str(), 0755);
      file << "NodeName=" << node << " NodeAddr=" << address << " CPUs=1 State=UNKNOWN\n";
    }
  }

  std::vector<std::string> munged_arguments() const {
    return {"--foreground",
            "--force",
            "--key-file=" + in("munge.key"),
            "--socket=" + in("munge.socket"),
            "--pid-file=" + in("munge.pid"),
            "--log-file=" + in("munge.log"),
            "--seed-file=" + in("munge.seed")};
  }

  /// For the daemons, srun and its like.
  Program::Variables variables() const { return {{"SLURM_CONF", in("slurm.conf")}}; }

  /// Whether `state()` says by a deadline what is wanted.
  template <class State>
  static bool becomes(const State& state, const std::string& wanted) {
    const dtrain::Deadline deadline = soon(std::chrono::seconds(60));
    while (state() != wanted) {
      if (deadline.passed()) return false;
      ::usleep(200000);
    }
    return true;
  }

  /// With the last line of each daemon's log.
  std::string problem_of_start() const {
    std::string problem = "Slurm does not start here:";
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path)) {
      std::ifstream file(entry.path());
      std::string last;
      for (std::string line; entry.path().extension() == ".log" && std::getline(file, line);) {
        last = line;
      }
      problem += last.empty() ? "" : " " + last;
    }
    return problem;
  }

 private:
  std::string in(const std::string& name) const { return folder_.path + "/" + name; }

  TemporaryDirectory folder_;
};

}  // namespace support
