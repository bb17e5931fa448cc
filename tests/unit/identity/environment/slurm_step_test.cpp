#include "dtrain/identity/environment/slurm_step.hpp"
#include "unit/identity/prelude.hpp"

namespace {

/// Task 2 of three, in a step over the components n3 and n1 of job 5.
Environment heterogeneous_step() {
  return variables(
      "SLURM_STEP_ID=0 SLURM_JOB_ID=5 SLURM_HET_SIZE=2 SLURM_JOB_NODELIST_HET_GROUP_0=n3 "
      "SLURM_JOB_NODELIST_HET_GROUP_1=n1 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1 "
      "SLURM_STEP_NODELIST=n[1,3] SLURM_PROCID=2 SLURM_NODEID=1 SLURM_LOCALID=1 SLURM_GTIDS=1,2");
}

std::string first_node(const Environment& environment) {
  return identity::first_slurm_node(Variables(environment), "SLURM_STEP_NODELIST");
}

}  // namespace

TEST_CASE("the local size is the number of SLURM_GTIDS, whatever the order of the node list") {
  Environment step = heterogeneous_step();
  CHECK(process_identity(step).local_world_size == 2);
  step.erase("SLURM_GTIDS");
  CHECK_FALSE(process_identity(step).local_world_size);  // the counts have the order of the sorted list
  step.erase("SLURM_JOB_NODELIST_HET_GROUP_0");
  step.erase("SLURM_JOB_NODELIST_HET_GROUP_1");
  step["SLURM_LOCALID"] = "0";
  CHECK(process_identity(step).local_world_size == 1);
}

TEST_CASE("RANK and WORLD_SIZE that agree with a heterogeneous step get its local size") {
  Environment step = heterogeneous_step();
  step.insert({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "n3"}});
  const identity::ProcessIdentity who = process_identity(step);
  CHECK(who.launcher == "torch");
  CHECK(who.local_rank == 1);
  CHECK(who.local_world_size == 2);
  CHECK(who.node_rank == 1);
}

TEST_CASE("node 0 is the first node of the step's first component, in the order of that component's list") {
  Environment step = heterogeneous_step();
  step["SLURM_STEP_NODELIST"] = "a,n[1-9]";
  step["SLURM_JOB_NODELIST_HET_GROUP_0"] = "b,n[12,07-08]";
  CHECK(first_node(step) == "n1");  // no node of component 0: n07 is another than n7
  step["SLURM_JOB_NODELIST_HET_GROUP_0"] = "b,n[12,7-8]";
  CHECK(first_node(step) == "n7");
  step["SLURM_JOB_NODELIST_HET_GROUP_0"] = "b";
  step["SLURM_JOB_NODELIST_HET_GROUP_1"] = "c";
  CHECK(first_node(step) == "a");
  step["SLURM_JOB_NODELIST_HET_GROUP_0"] = "n[3-1]";
  const outcome::Refusal refused = outcome::refusal([&] { static_cast<void>(first_node(step)); });
  CHECK(refused.code == "bad-hostlist");
  CHECK_CONTAINS(refused.sentence, "SLURM_JOB_NODELIST_HET_GROUP_0='n[3-1]'");
}

TEST_CASE("a job that a heterogeneous job submitted has inherited variables, which say nothing") {
  Environment step = heterogeneous_step();
  step["SLURM_JOB_ID_HET_GROUP_0"] = "4";
  step["SLURM_JOB_ID_HET_GROUP_1"] = "5";
  CHECK(first_node(step) == "n3");
  CHECK(process_identity(step).master_port == 61444);
  step["SLURM_JOB_ID"] = "7";
  step["SLURM_STEP_TASKS_PER_NODE"] = "1,2";
  step.erase("SLURM_GTIDS");
  CHECK(first_node(step) == "n1");
  CHECK(process_identity(step).local_world_size == 2);
  CHECK(process_identity(step).master_port == 61447);
  CHECK(process_identity(step).job == "SLURM_JOB_ID.SLURM_STEP_ID=7.0");
}

TEST_CASE("the ranks of all components of a heterogeneous job have one port") {
  Environment first = heterogeneous_step();
  first.insert({{"SLURM_JOB_ID_PACK_GROUP_0", "5"}, {"SLURM_JOB_ID_PACK_GROUP_1", "6"}});
  Environment second = first;
  second["SLURM_JOB_ID"] = "6";
  CHECK(process_identity(first).master_port == 61445);
  CHECK(process_identity(second).master_port == 61445);
  CHECK(process_identity(second).job == process_identity(first).job);
}

TEST_CASE("an MPI launcher in a heterogeneous step guesses the first component's first node") {
  const Environment job = variables(
      "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 SLURM_JOB_ID=5 SLURM_JOB_NODELIST=n[1,3] "
      "SLURM_JOB_NODELIST_HET_GROUP_0=n3 SLURM_JOB_NODELIST_HET_GROUP_1=n1");
  CHECK(process_identity(job).master_addr == "n3");
  CHECK(process_identity(job).is_provisional("master_addr"));
}

TEST_CASE("task 0 on another node than the first of the list is an error that names both") {
  Environment step = variables(
      "SLURM_STEP_ID=0 SLURM_JOB_ID=5 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n[1,3] "
      "SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0 SLURM_GTIDS=0 SLURMD_NODENAME=n3");
  const outcome::Refusal refused = refusal_of(step);
  CHECK(refused.code == "no-master-addr");
  CHECK_CONTAINS(refused.sentence, "SLURMD_NODENAME='n3', SLURM_STEP_NODELIST='n[1,3]'",
                 "set MASTER_ADDR on every task to the host of task 0");
  step["SLURMD_NODENAME"] = "n1";
  CHECK(process_identity(step).master_addr == "n1");
}
