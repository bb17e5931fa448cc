#include "dtrain/launch/configuration/job_identity.hpp"

#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "dtrain/identity/resolve_identity.hpp"
#include "support/temporary_directory.hpp"

namespace identity = dtrain::identity;
using dtrain::launch::hydra_job;
using dtrain::launch::job_identity;
using dtrain::launch::JobIdentity;

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
                                       dtrain::launch::SystemFiles(root.path));
  CHECK(job.origin.one_starter);
  CHECK(job.origin.starter == ::getppid());
  CHECK(job.origin.starter_name == "torchrun");
}
