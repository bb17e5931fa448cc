#pragma once
/// @file
/// Several hosts on this machine for a test: host0, host1, ... with networks of their own (see virtual_cluster.py).

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/identity/formats/json.hpp"
#include "support/launch_probe.hpp"
#include "support/program.hpp"

namespace support {

/// As long as this lives; also a test that is killed with -9 leaves nothing. `problem` says why there is none.
class VirtualCluster {
 public:
  /// @param rate what each host's link takes each way, in tc's words ("1gbit"); empty for as much as there is
  explicit VirtualCluster(int hosts, const std::string& rate = "") {
    if (python().empty()) {
      problem = "there is no python3, which sets virtual hosts up";
      return;
    }
    cluster_.emplace(
        python(), std::vector<std::string>{"-B", script(), "up", "--hosts=" + std::to_string(hosts), "--rate=" + rate});
    if (!cluster_->wait_for("}\n")) {
      const std::string error = cluster_->wait(soon(std::chrono::seconds(5))).error;
      problem = error.empty() ? "virtual hosts were not there in time" : error.substr(0, error.find('\n'));
      cluster_.reset();
      return;
    }
    const auto facts = dtrain::identity::parse_json(cluster_->output());
    if (!facts || facts->find("cluster") == nullptr || facts->find("processes") == nullptr) {
      throw std::runtime_error("reading what virtual_cluster.py says: " + cluster_->output());
    }
    name_ = facts->find("cluster")->text;
    for (const dtrain::identity::Json& process : facts->find("processes")->items)
      networks_.push_back(network_of(std::stoi(process.text)));
  }
  ~VirtualCluster() {
    if (cluster_) {
      cluster_->close_input();
      cluster_->wait(soon(std::chrono::seconds(10)));
    }
  }
  VirtualCluster(const VirtualCluster&) = delete;
  VirtualCluster& operator=(const VirtualCluster&) = delete;

  /// As a crash would: nothing of it is told.
  void kill() const { cluster_->signal(SIGKILL); }

  static std::string python() { return find_program("python3"); }
  static std::string script() { return DTRAIN_TEST_SUPPORT_DIR "/virtual_cluster.py"; }
  static std::string host(int number) { return "host" + std::to_string(number); }
  static std::string address(int number) { return "10.77.0." + std::to_string(number + 1); }

  /// The folder with its doors, which "virtual_cluster.py exec" and its like are told.
  const std::string& name() const noexcept { return name_; }

  /// What goes before a host and its program, for somebody else who starts it.
  std::string rsh() const { return name_ + "/rsh"; }

  /// Starts a program on a host. The process that is returned stands for it outside: signals, output, exit code.
  std::unique_ptr<Program> start(int number, const std::string& program, const std::vector<std::string>& arguments,
                                 const Program::Variables& variables = {}) const {
    std::vector<std::string> all{"-B", script(), "exec", name_, host(number), "--", program};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return std::make_unique<Program>(python(), all, variables);
  }

  Result run(int number, const std::string& program, const std::vector<std::string>& arguments,
             const Program::Variables& variables = {}) const {
    const std::unique_ptr<Program> started = start(number, program, arguments, variables);
    started->close_input();
    return started->wait();
  }

  /// Unplugs a host at the switch: packets are lost without a word, as by a cut cable.
  void cut(int number) const { switch_command("cut", number); }
  void mend(int number) const { switch_command("mend", number); }

  /// What a host's eth0 has sent, as the kernel counts it: with the headers of Ethernet, IP and TCP.
  std::uint64_t sent_bytes(int number) const { return counter(number, "tx_bytes"); }
  std::uint64_t sent_packets(int number) const { return counter(number, "tx_packets"); }
  std::uint64_t received_bytes(int number) const { return counter(number, "rx_bytes"); }

  /// The processes of a host, zombies left out, whose command line has `mark` in it.
  std::vector<pid_t> processes_of(int number, const std::string& mark) const {
    std::vector<pid_t> found = processes_with(mark);
    const std::string& network = networks_.at(static_cast<std::size_t>(number));
    found.erase(
        std::remove_if(found.begin(), found.end(), [&](pid_t process) { return network_of(process) != network; }),
        found.end());
    return found;
  }

  std::string problem;

 private:
  /// "net:[4026532181]"; empty for a process that has ended.
  static std::string network_of(pid_t process) {
    char target[64] = {};
    const std::string link = "/proc/" + std::to_string(process) + "/ns/net";
    return ::readlink(link.c_str(), target, sizeof target - 1) > 0 ? target : "";
  }

  void switch_command(const std::string& verb, int number) const {
    const Result result = support::run(python(), {"-B", script(), verb, name_, host(number)});
    if (result.exit_code != 0) throw std::runtime_error(verb + " " + host(number) + ": " + result.error);
  }

  std::uint64_t counter(int number, const std::string& name) const {
    const Result result = run(number, "cat", {"/sys/class/net/eth0/statistics/" + name});
    if (result.exit_code != 0) throw std::runtime_error("reading a counter of " + host(number) + ": " + result.error);
    return std::stoull(result.output);
  }

  std::optional<Program> cluster_;
  std::string name_;
  std::vector<std::string> networks_;
};

}  // namespace support
