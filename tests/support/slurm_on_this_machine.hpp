#pragma once
/// @file
/// SlurmOnThisMachine: a Slurm of one node on this machine.

#include <pwd.h>
#include <unistd.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/program.hpp"
#include "support/slurm_files.hpp"

namespace support {

/// munged, slurmctld and slurmd, as long as this lives. `problem` says why there is none.
class SlurmOnThisMachine {
 public:
  SlurmOnThisMachine() : problem(SlurmFiles::missing()) {
    if (!problem.empty()) return;
    char host[256] = {};
    const passwd* const user = ::getpwuid(::getuid());
    if (::gethostname(host, sizeof host - 1) != 0 || user == nullptr) {
      throw std::runtime_error("asking for this machine's and user's name");
    }
    const std::string short_host = std::string(host).substr(0, std::string(host).find('.'));
    files_.write(user->pw_name, {{short_host, "127.0.0.1"}});
    munged_.emplace(find_program("munged"), files_.munged_arguments());
    controller_.emplace(find_program("slurmctld"), std::vector<std::string>{"-D", "-i"}, variables());
    node_.emplace(find_program("slurmd"), std::vector<std::string>{"-D"}, variables());
    const auto state = [this] { return run(find_program("sinfo"), {"-h", "-o", "%t"}, variables()).output; };
    if (!SlurmFiles::becomes(state, "idle\n")) problem = files_.problem_of_start();
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
  Program::Variables variables() const { return files_.variables(); }

  std::string problem;

 private:
  const SlurmFiles files_;
  std::optional<Program> munged_;
  std::optional<Program> controller_;
  std::optional<Program> node_;
};

}  // namespace support
