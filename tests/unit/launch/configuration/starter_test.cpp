#include "dtrain/launch/configuration/starter.hpp"

#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_directory.hpp"

using dtrain::launch::SystemFiles;

using dtrain::launch::starter_of;

namespace {

/// A /proc with processes of a test's choice.
class Processes {
 public:
  void add(int process, int parent, const std::string& name, const std::string& environment,
           const std::string& command = "x") {
    const std::string folder = root_.path + "/proc/" + std::to_string(process);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/stat") << process << " (" << name << ") S " << parent
                                    << " 1 1 0 -1 4194304 148 0 0 0 0 0 0 0 20 0 1 0 " << 1000 + process << " 0 0\n";
    std::ofstream(folder + "/environ") << environment;
    std::ofstream(folder + "/cmdline") << command;
  }
  SystemFiles files() const { return SystemFiles(root_.path); }

 private:
  support::TemporaryDirectory root_;
};

std::string entries(const std::string& a, const std::string& b) {
  return a + '\0' + b + '\0';
}

}  // namespace

TEST_CASE("the starter is the nearest process above the rank that has not the rank's variable") {
  Processes processes;
  processes.add(7, 1, "hydra_pmi_proxy", entries("PATH=/bin", "PMI_RANK_OTHER=3"), entries("proxy", "--pgid"));
  processes.add(8, 7, "a (strange) name", entries("PMI_RANK=3", "PATH=/bin"));
  processes.add(9, 8, "bash", entries("PATH=/bin", "PMI_RANK=3"));
  const auto found = starter_of(processes.files(), 9, "PMI_RANK=3");
  REQUIRE(found);
  CHECK(found->process == 7);
  CHECK(found->began == 1007);
  CHECK(found->name == "hydra_pmi_proxy");
  CHECK(found->command == entries("proxy", "--pgid"));
  CHECK(starter_of(processes.files(), 9, "PMI_RANK=4")->process == 9);  // another rank started this one
  CHECK(starter_of(processes.files(), 8, "")->name == "a (strange) name");
}

TEST_CASE("a proxy of MPICH's is the starter, also where another launcher gave it a rank") {
  Processes processes;
  processes.add(6, 1, "slurmstepd", entries("PATH=/bin", "A=b"));
  processes.add(7, 6, "hydra_pmi_proxy", entries("PMI_RANK=0", "A=b"), entries("--control-port", "host-a:43789"));
  processes.add(8, 7, "bash", entries("PMI_RANK=0", "A=b"));
  const auto found = starter_of(processes.files(), 8, "PMI_RANK=0");
  REQUIRE(found);
  CHECK(found->process == 7);
}

TEST_CASE("what /proc does not tell is not known") {
  Processes processes;
  CHECK_FALSE(starter_of(processes.files(), 9, "RANK=0"));  // hidden
  CHECK_FALSE(starter_of(processes.files(), 0, "RANK=0"));  // outside the PID namespace
  processes.add(5, 0, "init", entries("RANK=0", "A=b"));
  CHECK_FALSE(starter_of(processes.files(), 5, "RANK=0"));
  processes.add(6, 6, "circle", entries("RANK=0", "A=b"));
  CHECK_FALSE(starter_of(processes.files(), 6, "RANK=0"));
}

TEST_CASE("this process's own parent is found, with its beginning") {
  const auto found = starter_of(SystemFiles(), ::getppid(), "NO_SUCH_VARIABLE=1");
  REQUIRE(found);
  CHECK(found->process == ::getppid());
  CHECK(found->began > 0);
  CHECK_FALSE(found->name.empty());
}

TEST_CASE("a malformed status is none") {
  using dtrain::launch::detail::parse_process_status;
  for (const char* line :
       {"", "12", "12 (a", "12 a) S 7", ") (", "12 (a) S", "12 (a) S 7 1 1 0 -1 1 1 0 0 0 0 0 0 0"}) {
    CAPTURE(line);
    CHECK_FALSE(parse_process_status(line));
  }
}
