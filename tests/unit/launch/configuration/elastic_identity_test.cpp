#include <deque>

#include "support/scoped_variable.hpp"
#include "unit/launch/prelude.hpp"

using dtrain::Errc;

namespace {

/// The process that an environment describes, of whose kind these variables are all.
RankProcess process_with(const std::map<std::string, std::string>& variables, Takes takes = Takes::elastic) {
  std::deque<support::ScopedVariable> set;
  for (const char* const name : {"DTRAIN_WORLD_SIZE",
                                 "DTRAIN_RANK",
                                 "DTRAIN_LOCAL_RANK",
                                 "DTRAIN_MASTER_ADDR",
                                 "DTRAIN_MASTER_PORT",
                                 "DTRAIN_LAUNCHER",
                                 "DTRAIN_LIVENESS_SECONDS",
                                 "DTRAIN_JOB_ID",
                                 "JOB_COMPLETION_INDEX",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "PMI_RANK",
                                 "SLURM_PROCID",
                                 "SLURM_LOCALID",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NUM_TASKS",
                                 "TORCHELASTIC_RUN_ID",
                                 "RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "MASTER_ADDR",
                                 "MASTER_PORT"}) {
    const auto found = variables.find(name);
    set.emplace_back(name, found == variables.end() ? nullptr : found->second.c_str());
  }
  return dtrain::launch::rank_process_of({}, takes);
}

}  // namespace

TEST_CASE("a range in DTRAIN_WORLD_SIZE makes a process an elastic worker, and index 0 hosts the store") {
  const RankProcess first =
      process_with({{"DTRAIN_WORLD_SIZE", "2:4"}, {"MASTER_ADDR", "10.0.0.7"}, {"JOB_COMPLETION_INDEX", "0"}});
  CHECK(first.min_ranks == 2);
  CHECK(first.identity.world_size == 4);
  CHECK(first.identity.master_addr == "10.0.0.7");
  CHECK(first.identity.master_port == 29500);
  CHECK_FALSE(first.identity.local_rank.has_value());
  CHECK(first.hosts_store);

  const RankProcess other = process_with({{"DTRAIN_WORLD_SIZE", "2:4"},
                                          {"MASTER_ADDR", "10.0.0.8"},
                                          {"DTRAIN_MASTER_ADDR", "10.0.0.7"},
                                          {"MASTER_PORT", "1"},
                                          {"DTRAIN_MASTER_PORT", "4000"},
                                          {"DTRAIN_LIVENESS_SECONDS", "3"},
                                          {"SLURM_STEP_ID", "0"},
                                          {"SLURM_STEP_NUM_TASKS", "4"},
                                          {"SLURM_PROCID", "3"},
                                          {"SLURM_LOCALID", "1"}});
  CHECK(other.identity.master_addr == "10.0.0.7");
  CHECK(other.identity.master_port == 4000);
  CHECK(other.identity.rank == 3);
  CHECK(other.identity.local_rank == 1);
  CHECK_FALSE(other.hosts_store);
  CHECK(other.reconnect_timeout == std::chrono::seconds(6));
}

TEST_CASE("the index of an elastic worker is the first of six variables that is set") {
  std::map<std::string, std::string> variables{{"DTRAIN_WORLD_SIZE", "1:2"}, {"MASTER_ADDR", "a"}, {"RANK", "1"}};
  CHECK(process_with(variables).identity.rank == 1);
  variables["SLURM_PROCID"] = "2";
  variables["SLURM_LOCALID"] = "2";
  CHECK(process_with(variables).identity.rank == 1);  // of a batch script, whose processes inherit it
  CHECK_FALSE(process_with(variables).identity.local_rank.has_value());
  variables["SLURM_STEP_ID"] = "5";
  variables["SLURM_STEP_NUM_TASKS"] = "4";
  CHECK(process_with(variables).identity.rank == 2);
  variables["PMI_RANK"] = "4";
  CHECK(process_with(variables).identity.rank == 4);
  variables["OMPI_COMM_WORLD_RANK"] = "5";
  CHECK(process_with(variables).identity.rank == 5);
  variables["JOB_COMPLETION_INDEX"] = "3";
  CHECK(process_with(variables).identity.rank == 3);
  variables["DTRAIN_RANK"] = "0";
  CHECK(process_with(variables).hosts_store);
}

TEST_CASE("what describes no elastic worker is refused with the variable and what to set") {
  const std::map<std::string, std::string> good{
      {"DTRAIN_WORLD_SIZE", "2:4"}, {"MASTER_ADDR", "a"}, {"JOB_COMPLETION_INDEX", "1"}};
  const auto with = [&good](const std::string& name, const std::string& value) {
    std::map<std::string, std::string> changed = good;
    changed[name] = value;
    return changed;
  };
  for (const char* const sizes : {"4:2", "0:2", "2:", ":2", "2:x", "1:2:3", "1:1048577"}) {
    CAPTURE(sizes);
    CHECK_ERROR(process_with(with("DTRAIN_WORLD_SIZE", sizes)), Errc::identity,
                "is MIN:MAX, 1 at least and 1048576 at most");
  }
  CHECK_ERROR(process_with(with("MASTER_ADDR", "")), Errc::identity, "MASTER_ADDR and MASTER_PORT are the address");
  CHECK_ERROR(process_with(with("MASTER_PORT", "70000")), Errc::identity, "MASTER_PORT='70000'");
  CHECK_ERROR(process_with(with("JOB_COMPLETION_INDEX", "")), Errc::identity, "set DTRAIN_RANK to 0 in one");
  CHECK_ERROR(process_with(with("JOB_COMPLETION_INDEX", "-1")), Errc::identity, "JOB_COMPLETION_INDEX");
  CHECK_ERROR(process_with(with("TORCHELASTIC_RUN_ID", "none")), Errc::identity, "torchrun starts no elastic job");
  CHECK_ERROR(process_with(good, Takes::group), Errc::identity, "a body that takes a dtrain::Elastic");
}

TEST_CASE("DTRAIN_LAUNCHER names another source than an elastic job's variables") {
  const RankProcess alone =
      process_with({{"DTRAIN_WORLD_SIZE", "2:4"}, {"MASTER_ADDR", "a"}, {"DTRAIN_LAUNCHER", "none"}});
  CHECK(alone.min_ranks == 0);
  CHECK(alone.identity.world_size == 1);
}

TEST_CASE("a step of Slurm names an elastic job and chooses its port, unless variables do") {
  std::map<std::string, std::string> variables{{"DTRAIN_WORLD_SIZE", "1:2"},  {"MASTER_ADDR", "a"},
                                               {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "1"},
                                               {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}};
  const RankProcess named = process_with(variables);
  CHECK(named.identity.job == "SLURM_JOB_ID.SLURM_STEP_ID=77.1");
  CHECK(named.identity.master_port == 61440 + 77 + 257);
  variables["SLURM_STEP_ID"] = "2";
  CHECK(process_with(variables).identity.job != named.identity.job);
  CHECK(process_with(variables).identity.master_port != named.identity.master_port);
  variables["DTRAIN_JOB_ID"] = "monday";
  variables["MASTER_PORT"] = "4001";
  CHECK(process_with(variables).identity.job == "DTRAIN_JOB_ID=monday");
  CHECK(process_with(variables).identity.master_port == 4001);
  variables["DTRAIN_MASTER_PORT"] = "4002";
  CHECK(process_with(variables).identity.master_port == 4002);
  variables.erase("DTRAIN_JOB_ID");
  variables["OMPI_COMM_WORLD_RANK"] = "1";  // a daemon of Open MPI is a step on some nodes
  CHECK_FALSE(process_with(variables).identity.job.has_value());
}
