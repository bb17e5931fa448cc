#include "dtrain/identity/resolve.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace identity = dtrain::identity;
using identity::Environment;
using identity::IdentityError;
using identity::ProcessIdentity;

namespace {

std::string error_code_of(const Environment& environment, std::vector<const char*> arguments = {}) {
  try {
    static_cast<void>(identity::process_identity(environment, arguments));
  } catch (const IdentityError& error) {
    return std::string(name(error.reason()));
  }
  return "";
}

std::string sentence_of(const Environment& environment, std::vector<const char*> arguments = {}) {
  try {
    static_cast<void>(identity::process_identity(environment, arguments));
  } catch (const IdentityError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an error names the variable, its value and what to set") {
  const std::string not_a_number = sentence_of({{"RANK", "1x"}, {"WORLD_SIZE", "2"}});
  CHECK(contains(not_a_number, "RANK='1x'"));
  CHECK(contains(not_a_number, "unset it"));
  const std::string port =
      sentence_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}});
  CHECK(contains(port, "MASTER_PORT='70000'"));
  CHECK(contains(port, "1 to 65535"));
  CHECK(contains(sentence_of({{"WORLD_SIZE", "8"}}), "WORLD_SIZE=8 is set but RANK is not"));
  CHECK(contains(sentence_of({{"RANK", "3"}}), "WORLD_SIZE"));
  CHECK(contains(sentence_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "rank 2 is not below world size 2"));
  CHECK(contains(sentence_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}}), "set MASTER_ADDR"));
  const std::string control =
      sentence_of({{"RANK", std::string("\x1b[31m") + std::string(9999, '1')}, {"WORLD_SIZE", "2"}});
  CHECK(!contains(control, "\x1b"));
  CHECK(control.size() < 300);
}

TEST_CASE("integers are decimal digits only and ports are 1 to 65535") {
  for (const char* bad : {"-1", "+1", " 1", "1 ", "0x1", "1.0", "2147483648", "99999999999999999999", "one"}) {
    CAPTURE(bad);
    CHECK(error_code_of({{"RANK", bad}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}}) == "bad-integer");
    CHECK(error_code_of({{"DTRAIN_RANK", "0"}, {"DTRAIN_WORLD_SIZE", bad}}) == "bad-integer");
    CHECK(error_code_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", bad}}) == "bad-port");
  }
  for (const char* bad : {"0", "65536", "http"}) {
    CAPTURE(bad);
    CHECK(error_code_of({{"MASTER_PORT", bad}}) == "bad-port");
  }
  CHECK(error_code_of({{"MASTER_PORT", "65535"}}) == "");
}

TEST_CASE("an empty value counts as unset") {
  const ProcessIdentity who = identity::process_identity({{"RANK", ""}, {"WORLD_SIZE", ""}, {"DTRAIN_LAUNCHER", ""}});
  CHECK(who.launcher == "single");
}

TEST_CASE("the local rank is read from the variable or from any spelling of the argument") {
  const Environment job{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}};
  for (const std::vector<const char*>& arguments : std::vector<std::vector<const char*>>{
           {"train", "--local_rank=1"},
           {"train", "--local-rank=1"},
           {"train", "--local_rank", "1"},
           {"train", "--epochs", "3", "--local-rank", "1"},
       }) {
    CHECK(identity::process_identity(job, arguments).local_rank == 1);
  }
  CHECK(!identity::process_identity(job, std::vector<const char*>{"train", "--", "--local_rank=1"}).local_rank);
  CHECK(error_code_of(job, {"train", "--local_rank"}) == "bad-integer");
  CHECK(error_code_of(job, {"train", "--local_rank=x"}) == "bad-integer");
  CHECK(error_code_of(job, {"train", "--local_rank=1", "--local-rank=2"}) == "conflict-local-rank");
  Environment with_variable = job;
  with_variable["LOCAL_RANK"] = "1";
  CHECK(error_code_of(with_variable, {"train", "--local_rank=1"}) == "");
  CHECK(error_code_of(with_variable, {"train", "--local_rank=0"}) == "conflict-local-rank");
}

TEST_CASE("a world size of 1 is complete, and only local rank 0 fits it") {
  const ProcessIdentity who = identity::process_identity({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"NODE_RANK", "5"}});
  CHECK(who.local_rank == 0);
  CHECK(who.local_world_size == 1);
  CHECK(who.node_rank == 0);
  CHECK(who.node_count == 1);
  CHECK(who.master_addr == "127.0.0.1");
  CHECK(error_code_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "1"}}) == "rank-out-of-range");
  CHECK(error_code_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}) == "rank-out-of-range");
}

TEST_CASE("the port after 65535 is the first above the ephemeral range") {
  const ProcessIdentity who = identity::process_identity({{"RANK", "0"},
                                                          {"WORLD_SIZE", "1"},
                                                          {"MASTER_PORT", "65535"},
                                                          {"TORCHELASTIC_RUN_ID", "x"},
                                                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  CHECK(who.master_port == 61440);
}

TEST_CASE("one Azure node makes the local size certain, several leave it a guess") {
  Environment job{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "h"}};
  job["AZUREML_NODE_COUNT"] = "1";
  CHECK(identity::process_identity(job).local_world_size == 4);
  CHECK(identity::process_identity(job).provisional.empty());
  job["AZUREML_NODE_COUNT"] = "2";
  CHECK(identity::process_identity(job).local_world_size == 2);
  CHECK(identity::process_identity(job).is_provisional("local_world_size"));
  job["AZUREML_NODE_COUNT"] = "3";
  CHECK(!identity::process_identity(job).local_world_size);
  job["AZUREML_NODE_COUNT"] = "0";
  CHECK(error_code_of(job) == "bad-integer");
}

TEST_CASE("DTRAIN_LAUNCHER forces a source that is there, or none") {
  Environment job{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"DTRAIN_RANK", "0"}, {"DTRAIN_WORLD_SIZE", "1"}};
  CHECK(identity::process_identity(job).launcher == "dtrain");
  job["DTRAIN_LAUNCHER"] = "torch";
  CHECK(identity::process_identity(job).rank == 1);
  job["DTRAIN_LAUNCHER"] = "none";
  CHECK(identity::process_identity(job).launcher == "single");
  for (const char* absent : {"k8s", "Torch", "nobody", "slurm"}) {
    job["DTRAIN_LAUNCHER"] = absent;
    CHECK(error_code_of(job) == "unknown-launcher");
    CHECK(contains(sentence_of(job), "there are: dtrain, torch, single, none"));
  }
}

TEST_CASE("half an environment is an error that helps, not a lonely process") {
  CHECK(error_code_of({{"PET_NNODES", "2"}}) == "node-level-env");
  CHECK(error_code_of({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "4"}}) == "node-level-env");
  CHECK(error_code_of({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "1"}}) == "");
  CHECK(error_code_of({{"PMIX_RANK", "0"}}) == "pmix-only");
  CHECK(error_code_of({{"WORLD_SIZE", "1"}}) == "");
  CHECK(error_code_of({{"RANK", "0"}}) == "no-world-size");
  CHECK(error_code_of({{"PMIX_RANK", "0"}, {"WORLD_SIZE", "4"}}) == "no-rank");
  const ProcessIdentity half = identity::process_identity({{"DTRAIN_RANK", "1"}});
  CHECK(half.launcher == "single");
  CHECK(half.warnings.size() == 1);
}

TEST_CASE("an indexed job with a size takes its rank from the index") {
  Environment job{{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "3"}};
  CHECK(error_code_of(job) == "no-master-addr");
  job["MASTER_ADDR"] = "job-0";
  const ProcessIdentity who = identity::process_identity(job);
  CHECK(who.launcher == "k8s");
  CHECK(who.rank == 2);
  CHECK(who.world_size == 3);
}

TEST_CASE("a Slurm allocation without srun is one process, with a warning") {
  const ProcessIdentity who =
      identity::process_identity({{"SLURM_JOB_ID", "5"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  CHECK(who.launcher == "single");
  REQUIRE(who.warnings.size() == 1);
  CHECK(contains(who.warnings[0], "Slurm job of 4 tasks, not started with srun"));
}

TEST_CASE("the ranks of a generated job have distinct, complete identities that decoys do not change") {
  std::mt19937 random(20240607);
  const auto below = [&random](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  const std::vector<std::string> decoys{"OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_ID",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TF_CONFIG",
                                        "PET_NNODES",
                                        "GROUP_RANK",
                                        "NODE_RANK",
                                        "AZUREML_NODE_COUNT",
                                        "CROSS_SIZE"};
  for (int round = 0; round < 50; ++round) {
    const int nodes = 1 + below(4);
    const int per_node = 1 + below(4);
    std::set<std::tuple<int, int, int>> seen;
    for (int rank = 0; rank < nodes * per_node; ++rank) {
      Environment job{{"DTRAIN_RANK", std::to_string(rank)},
                      {"DTRAIN_WORLD_SIZE", std::to_string(nodes * per_node)},
                      {"DTRAIN_LOCAL_RANK", std::to_string(rank % per_node)},
                      {"DTRAIN_LOCAL_WORLD_SIZE", std::to_string(per_node)},
                      {"DTRAIN_NODE_RANK", std::to_string(rank / per_node)},
                      {"DTRAIN_NODE_COUNT", std::to_string(nodes)},
                      {"DTRAIN_MASTER_ADDR", "h0"},
                      {"DTRAIN_MASTER_PORT", "29501"}};
      const ProcessIdentity plain = identity::process_identity(job);
      for (int i = 0; i < 6; ++i) {
        job[decoys[random() % decoys.size()]] = std::to_string(below(9));
      }
      const std::vector<const char*> arguments{"train", "--local_rank=7"};
      CHECK(identity::process_identity(job, arguments) == plain);
      REQUIRE(plain.local_rank.has_value());
      REQUIRE(plain.local_world_size.has_value());
      REQUIRE(plain.node_rank.has_value());
      REQUIRE(plain.node_count.has_value());
      CHECK(plain.provisional.empty());
      seen.insert({plain.rank, *plain.node_rank, *plain.local_rank});
    }
    CHECK(seen.size() == static_cast<std::size_t>(nodes * per_node));
  }
}
