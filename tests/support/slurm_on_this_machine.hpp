#pragma once
// A Slurm of one node on this machine, with all of its files in a folder of a test's own.

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

#include "support/free_port.hpp"
#include "support/program.hpp"
#include "support/temporary_directory.hpp"

namespace support {

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

/// munged, slurmctld and slurmd, as long as this lives. `problem` says why there is none.
class SlurmOnThisMachine {
 public:
  SlurmOnThisMachine() {
    for (const char* needed : {"munged", "slurmctld", "slurmd", "srun", "sinfo"}) {
      if (find_program(needed).empty()) {
        problem = std::string("Slurm is not installed: there is no ") + needed;
        return;
      }
    }
    write_files();
    munged_.emplace(find_program("munged"),
                    std::vector<std::string>{"--foreground", "--force", "--key-file=" + in("munge.key"),
                                             "--socket=" + in("munge.socket"), "--pid-file=" + in("munge.pid"),
                                             "--log-file=" + in("munge.log"), "--seed-file=" + in("munge.seed")});
    controller_.emplace(find_program("slurmctld"), std::vector<std::string>{"-D", "-i"}, variables());
    node_.emplace(find_program("slurmd"), std::vector<std::string>{"-D"}, variables());
    if (!becomes_idle()) {
      problem = "Slurm does not start here: " + last_line(in("slurmctld.log")) + " " + last_line(in("slurmd.log"));
    }
  }
  ~SlurmOnThisMachine() {
    for (std::optional<Program>* daemon : {&node_, &controller_, &munged_}) {
      if (*daemon) {
        (*daemon)->signal(SIGTERM);
        (*daemon)->wait(soon(std::chrono::seconds(5)));
      }
    }
  }
  SlurmOnThisMachine(const SlurmOnThisMachine&) = delete;
  SlurmOnThisMachine& operator=(const SlurmOnThisMachine&) = delete;

  /// For srun and its like to find it.
  Program::Variables variables() const { return {{"SLURM_CONF", in("slurm.conf")}}; }

  std::string problem;

 private:
  std::string in(const std::string& name) const { return folder_.path + "/" + name; }

  static std::string last_line(const std::string& path) {
    std::ifstream file(path);
    std::string last;
    for (std::string line; std::getline(file, line);)
      last = line;
    return last;
  }

  void write_files() const {
    char host[256] = {};
    const passwd* const user = ::getpwuid(::getuid());
    if (::gethostname(host, sizeof host - 1) != 0 || user == nullptr) {
      throw std::runtime_error("asking for this machine's and user's name");
    }
    const std::string short_host = std::string(host).substr(0, std::string(host).find('.'));
    ::chmod(folder_.path.c_str(), 0755);  // tasks reach munge's socket in it
    std::ofstream(in("munge.key")) << "a key of 32 bytes, of no secrecy..";
    ::chmod(in("munge.key").c_str(), 0600);
    ::mkdir(in("state").c_str(), 0755);
    ::mkdir(in("spool").c_str(), 0755);
    std::ofstream(in("slurm.conf")) << "ClusterName=dtrain\nSlurmctldHost=" << short_host << "(127.0.0.1)\n"
                                    << "SlurmctldPort=" << free_port() << "\nSlurmdPort=" << free_port() << "\n"
                                    << "SlurmUser=" << user->pw_name << "\nSlurmdUser=" << user->pw_name << "\n"
                                    << "AuthType=auth/munge\nCredType=cred/munge\n"
                                    << "AuthInfo=socket=" << in("munge.socket") << "\n"
                                    << "StateSaveLocation=" << in("state") << "\nSlurmdSpoolDir=" << in("spool") << "\n"
                                    << "SlurmctldPidFile=" << in("slurmctld.pid") << "\n"
                                    << "SlurmdPidFile=" << in("slurmd.pid") << "\n"
                                    << "SlurmctldLogFile=" << in("slurmctld.log") << "\n"
                                    << "SlurmdLogFile=" << in("slurmd.log") << "\n"
                                    << "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
                                    << "JobAcctGatherType=jobacct_gather/none\nReturnToService=2\n"
                                    << "AccountingStorageType=accounting_storage/none\n"
                                    << "NodeName=" << short_host << " NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN\n"
                                    << "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
  }

  bool becomes_idle() {
    const dtrain::Deadline deadline = soon();
    while (!deadline.passed()) {
      const Result result = run(find_program("sinfo"), {"-h", "-o", "%t"}, variables());
      if (result.exit_code == 0 && result.output.substr(0, 4) == "idle") return true;
      ::usleep(200000);
    }
    return false;
  }

  TemporaryDirectory folder_;
  std::optional<Program> munged_;
  std::optional<Program> controller_;
  std::optional<Program> node_;
};

}  // namespace support
