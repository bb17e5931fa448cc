#pragma once
/// @file
/// A benchmark's ranks on several virtual hosts of this machine, joined by links of a given rate.

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/command.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"

namespace bench {

/// How many hosts, ranks on each, and what a link carries each way.
struct VirtualHosts {
  int hosts = 2;
  int ranks_per_host = 1;
  std::string rate = "1gbit";
  double bytes_per_second = 125e6;

  int ranks() const noexcept { return hosts * ranks_per_host; }
};

/// Runs commands on them (tests/support/virtual_cluster.py, which needs python3, iproute2 and root or user namespaces).
class VirtualJob {
 public:
  static constexpr const char* network = "10.77.0.0/24";
  static constexpr const char* first_host = "10.77.0.1";

  explicit VirtualJob(VirtualHosts hosts) : hosts_(std::move(hosts)) {}

  /// Whether hosts can be made here. Blocking: until one was.
  static bool possible() {
    const auto soon = dtrain::Deadline::after(std::chrono::seconds(30));
    return run_command({"python3", "-B", script(), "run", "--hosts=1", "--", "true"}, soon).succeeded;
  }

  /// This program as a launch::PerNode program on every host, its arguments behind launched_word.
  Told run_per_node(std::vector<std::string> arguments) const {
    ::setenv("DTRAIN_SECRET", "of a benchmark on virtual hosts", 1);
    std::vector<std::string> command = each_host();
    command.insert(command.end(), {own_path(), "--nnodes=" + std::to_string(hosts_.hosts), "--node-rank={host}",
                                   "--nproc-per-node=" + std::to_string(hosts_.ranks_per_host),
                                   std::string("--master-addr=") + first_host, "--master-port=29431", launched_word});
    command.insert(command.end(), arguments.begin(), arguments.end());
    return told_by(std::move(command));
  }

  /// This program under mpirun, started on the first host.
  Told run_mpi(std::vector<std::string> arguments) const { return run_mpi_program(own_path(), launched(arguments)); }

  /// A program of a peer under mpirun.
  Told run_mpi_program(const std::string& program, const std::vector<std::string>& arguments) const {
    std::string where;
    for (int host = 0; host < hosts_.hosts; ++host) {
      where += (host == 0 ? "host" : ",host") + std::to_string(host) + ":" + std::to_string(hosts_.ranks_per_host);
    }
    std::string shell = "exec mpirun --oversubscribe --bind-to none -n " + std::to_string(hosts_.ranks()) + " -H " +
                        where + " --mca plm_rsh_agent \"$VIRTUAL_CLUSTER/rsh\" --mca btl self,vader,tcp" +
                        " --mca btl_tcp_if_include " + network + " --mca oob_tcp_if_include " + network + " '" +
                        program + "'";
    for (const std::string& argument : arguments) {
      shell += " '" + argument + "'";
    }
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    return told_by({"python3", "-B", script(), "run", "--hosts=" + std::to_string(hosts_.hosts),
                    "--rate=" + hosts_.rate, "--", "sh", "-c", shell});
  }

  /// A command on every host; {host} in it is the host's number.
  Told run_on_each(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = each_host();
    command.insert(command.end(), arguments.begin(), arguments.end());
    return told_by(std::move(command));
  }

 private:
  static std::string script() { return std::string(DTRAIN_BENCH_DIR) + "/../tests/support/virtual_cluster.py"; }

  static std::vector<std::string> launched(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), launched_word);
    return arguments;
  }

  std::vector<std::string> each_host() const {
    return {"python3", "-B", script(), "run", "--hosts=" + std::to_string(hosts_.hosts), "--rate=" + hosts_.rate,
            "--each",  "--"};
  }

  static Told told_by(std::vector<std::string> command) {
    const CommandOutput output = run_command(std::move(command), dtrain::Deadline::after(std::chrono::seconds(300)));
    if (!output.succeeded) {
      throw dtrain::Error(dtrain::Errc::protocol, "a job on virtual hosts failed, or took more than 300 s");
    }
    return Told::from(output.text);
  }

  VirtualHosts hosts_;
};

}  // namespace bench
