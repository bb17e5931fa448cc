#include "unit/launch/prelude.hpp"

namespace identity = dtrain::identity;

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
  dtrain::SystemFiles files() const { return dtrain::SystemFiles(root_.path); }

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
  const auto found = starter_of(dtrain::SystemFiles(), ::getppid(), "NO_SUCH_VARIABLE=1");
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

TEST_CASE("MPICH's jobs are named by the address that all of their proxies call") {
  const std::string proxy("hydra_pmi_proxy\0--control-port\0host-a:43789\0--rmk\0user\0", 55);
  CHECK(hydra_job(proxy) == "hydra=host-a:43789");
  CHECK_FALSE(hydra_job(std::string("bash\0-c\0x\0", 10)));
  CHECK_FALSE(hydra_job(std::string("proxy\0--control-port\0", 21)));
  CHECK_FALSE(hydra_job(""));
}

TEST_CASE("a rank of several says what started it and what it runs, one alone nothing") {
  const identity::Environment environment{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}};
  const JobIdentity job = job_identity(identity::Variables(environment), identity::process_identity(environment));
  CHECK(job.name.empty());
  CHECK_FALSE(job.origin.is_exact_job);
  CHECK_FALSE(job.origin.one_starter);
  CHECK(job.origin.process_space != 0);
  CHECK(job.origin.starter == ::getppid());
  CHECK_FALSE(job.origin.program.empty());
  CHECK_FALSE(job.origin.build.empty());
  identity::Environment named = environment;
  named["DTRAIN_JOB_ID"] = "monday";
  CHECK(job_identity(identity::Variables(named), identity::process_identity(named)).name == "DTRAIN_JOB_ID=monday");
  CHECK(job_identity(identity::Variables(named), identity::process_identity(named)).origin.is_exact_job);
  const JobIdentity alone = job_identity(identity::Variables({}), identity::process_identity({}));
  CHECK(alone.name.empty());
  CHECK(alone.origin == dtrain::rendezvous::Origin());
}

TEST_CASE("torchrun's agent is its ranks' starter, also where it has the RANK of its node") {
  const support::TemporaryDirectory root;
  const std::string folder = root.path + "/proc/" + std::to_string(::getppid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/stat") << ::getppid()
                                  << " (torchrun) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n";
  std::ofstream(folder + "/environ") << std::string("RANK=0\0WORLD_SIZE=1\0", 20);
  const identity::Environment environment{
      {"RANK", "0"},       {"WORLD_SIZE", "2"},       {"LOCAL_RANK", "0"},       {"MASTER_ADDR", "h"},
      {"GROUP_RANK", "0"}, {"GROUP_WORLD_SIZE", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}};
  const JobIdentity job = job_identity(identity::Variables(environment), identity::process_identity(environment),
                                       dtrain::SystemFiles(root.path));
  CHECK(job.origin.one_starter);
  CHECK(job.origin.starter == ::getppid());
  CHECK(job.origin.starter_name == "torchrun");
}
