#include "unit/identity/prelude.hpp"

namespace {

std::string error_code_of(const Environment& environment, const NodeFlags& flags = {}) {
  return outcome::node_refusal_of(environment, flags).code;
}

/// Launcher 1 of 3, one on each node, by mpirun.
Environment mpirun_node() {
  return variables(
      "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1");
}

/// Launcher 1 of 3, one on each node, by srun.
Environment srun_node() {
  return variables(
      "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_JOB_ID=5 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=3 SLURM_NODEID=1 "
      "SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_STEP_NODELIST=n[1-3]");
}

}  // namespace

TEST_CASE("nothing set is node 0 of 1 on the loopback address with a port to be chosen") {
  const NodeIdentity node = node_identity({});
  CHECK(node.node_rank == 0);
  CHECK(node.node_count == 1);
  CHECK(node.master_addr == "127.0.0.1");
  CHECK(!node.master_port);
  CHECK(!node.nproc_per_node);
  CHECK(node.launcher == "single");
}

TEST_CASE("flags win over the environment field by field") {
  const Environment pet =
      variables("PET_NODE_RANK=1 PET_NNODES=2 PET_MASTER_ADDR=h0 PET_MASTER_PORT=1234 PET_NPROC_PER_NODE=4");
  NodeFlags flags;
  flags.master_port = "4321";
  flags.nproc_per_node = "auto";
  const NodeIdentity node = node_identity(pet, flags);
  CHECK(node.node_rank == 1);
  CHECK(node.node_count == 2);
  CHECK(node.master_addr == "h0");
  CHECK(node.master_port == 4321);
  CHECK(node.nproc_per_node == "auto");
  CHECK(node.launcher == "pet");
  flags.node_count = "1";
  CHECK(node_identity(pet, flags).node_rank == 0);
  CHECK(node_identity(pet, flags).launcher == "node");
}

TEST_CASE("DTRAIN_NODE, then PET, then NODE_RANK, then the process rules") {
  Environment everything = variables(
      "RANK=3 WORLD_SIZE=4 MASTER_ADDR=h NODE_RANK=2 NNODES=5 PET_NODE_RANK=1 PET_NNODES=6 DTRAIN_NODE_RANK=0 "
      "DTRAIN_NODE_COUNT=7");
  CHECK(node_identity(everything).node_count == 7);
  everything.erase("DTRAIN_NODE_RANK");
  CHECK(node_identity(everything).node_count == 6);
  everything.erase("PET_NODE_RANK");
  CHECK(node_identity(everything).node_count == 5);
  everything.erase("NODE_RANK");
  CHECK(node_identity(everything).node_rank == 3);
  CHECK(node_identity(everything).node_count == 4);
  CHECK(node_identity(everything).launcher == "torch");
}

TEST_CASE("several nodes want a master and have port 29500 where none is given") {
  NodeFlags flags;
  flags.node_count = "2";
  flags.node_rank = "1";
  CHECK(error_code_of({}, flags) == "no-master-addr");
  flags.master_addr = "h0";
  CHECK(node_identity({}, flags).master_port == 29500);
}

TEST_CASE("node facts that cannot be are errors with their codes") {
  CHECK(error_code_of(variables("PET_NODE_RANK=0 PET_NNODES=1:4")) == "elastic-range");
  CHECK(error_code_of(variables("DTRAIN_WORLD_SIZE=1:4")) == "elastic-range");
  CHECK(error_code_of(variables("DTRAIN_RANK=0 DTRAIN_WORLD_SIZE=1:4")) == "elastic-range");
  CHECK_CONTAINS(outcome::node_refusal_of(variables("DTRAIN_WORLD_SIZE=1:4")).sentence,
                 "DTRAIN_WORLD_SIZE='1:4' is a range of nodes, which only --nnodes and PET_NNODES may be");
  CHECK(error_code_of(variables("PET_NODE_RANK=2 PET_NNODES=2 MASTER_ADDR=h")) == "rank-out-of-range");
  CHECK(error_code_of(variables("PET_NPROC_PER_NODE=gpu")) == "bad-integer");
  CHECK(error_code_of(variables("PET_NPROC_PER_NODE=0")) == "bad-integer");
  NodeFlags flags;
  flags.master_port = "99999";
  CHECK(error_code_of({}, flags) == "bad-port");
  flags = {};
  flags.node_count = "x";
  CHECK(error_code_of({}, flags) == "bad-integer");
}

TEST_CASE("DTRAIN_LAUNCHER forces which launcher counts for a node") {
  Environment both =
      variables("PET_NODE_RANK=0 PET_NNODES=2 PET_MASTER_ADDR=h NODE_RANK=2 NNODES=3 DTRAIN_LAUNCHER=node");
  CHECK(node_identity(both).node_count == 3);
  both["DTRAIN_LAUNCHER"] = "pet";
  CHECK(node_identity(both).node_count == 2);
  both["DTRAIN_LAUNCHER"] = "none";
  CHECK(node_identity(both).node_count == 1);
  both["DTRAIN_LAUNCHER"] = "torch";
  CHECK(error_code_of(both) == "unknown-launcher");
  CHECK(outcome::contains(outcome::node_refusal_of(variables("DTRAIN_LAUNCHER=pet PET_NODE_RANK=0")).sentence,
                          "DTRAIN_LAUNCHER='pet' names a launcher, but its variables are not set, and no other "
                          "launcher's are; set PET_NNODES,"));
}

TEST_CASE("one launcher on each node under mpirun has its rank as the node's, and mpirun's master") {
  Environment node = mpirun_node();
  CHECK(error_code_of(node) == "no-master-addr");
  node["SLURM_JOB_NODELIST"] = "gpu-a,gpu-b,gpu-c";
  node["SLURM_JOB_ID"] = "7";
  NodeIdentity found = node_identity(node);
  CHECK(found.node_rank == 1);
  CHECK(found.node_count == 3);
  CHECK(found.master_addr == "gpu-a");
  CHECK(found.master_port == 61447);
  CHECK(found.provisional == std::vector<std::string>{"master_addr"});
  CHECK(found.launcher == "openmpi");
  NodeFlags flags;
  flags.master_addr = "h9";
  flags.master_port = "4321";
  found = node_identity(node, flags);
  CHECK(found.master_addr == "h9");
  CHECK(found.master_port == 4321);
  CHECK(found.provisional.empty());
  node["OMPI_COMM_WORLD_SIZE"] = "1";
  node["OMPI_COMM_WORLD_RANK"] = "0";
  CHECK(node_identity(node).master_addr == "127.0.0.1");
  CHECK(!node_identity(node).master_port);
}

TEST_CASE("one launcher on each node under srun has the node's number, and the step's first host") {
  const NodeIdentity found = node_identity(srun_node());
  CHECK(found.node_rank == 1);
  CHECK(found.node_count == 3);
  CHECK(found.master_addr == "n1");
  CHECK(found.master_port == 61445);
  CHECK(found.launcher == "slurm");
}

TEST_CASE("several launchers on a node are refused with what to give mpirun or srun") {
  Environment node = mpirun_node();
  node["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  outcome::Refusal refused = outcome::node_refusal_of(node);
  CHECK(refused.code == "many-launchers");
  CHECK(outcome::contains(refused.sentence, "OMPI_COMM_WORLD_LOCAL_SIZE='2'"));
  CHECK(outcome::contains(refused.sentence, "-npernode 1"));
  for (const char* tasks : {"2(x3)", "1,2,1", "2,1(x2)"}) {  // also on a node that has one
    node = srun_node();
    node["SLURM_STEP_TASKS_PER_NODE"] = tasks;
    node["SLURM_STEP_NUM_TASKS"] = "6";
    refused = outcome::node_refusal_of(node);
    CHECK(refused.code == "many-launchers");
    CHECK(outcome::contains(refused.sentence, "SLURM_STEP_TASKS_PER_NODE='" + std::string(tasks) + "'"));
    CHECK(outcome::contains(refused.sentence, "--ntasks-per-node=1"));
  }
  NodeFlags whole;
  whole.node_count = "1";
  CHECK(error_code_of(node, whole) == "");
}

TEST_CASE("what names nodes comes before mpirun, mpirun before srun, and both before what names processes") {
  Environment all = srun_node();
  all.merge(mpirun_node());
  all.insert({{"RANK", "5"}, {"WORLD_SIZE", "9"}, {"MASTER_ADDR", "h"}, {"PET_NODE_RANK", "2"}, {"PET_NNODES", "4"}});
  CHECK(node_identity(all).launcher == "pet");
  all.erase("PET_NODE_RANK");
  CHECK(node_identity(all).launcher == "openmpi");
  all["DTRAIN_LAUNCHER"] = "slurm";
  CHECK(node_identity(all).launcher == "slurm");
  all["DTRAIN_LAUNCHER"] = "torch";
  CHECK(node_identity(all).node_rank == 5);
  all["DTRAIN_LAUNCHER"] = "pet";
  CHECK(outcome::contains(outcome::node_refusal_of(all).sentence, "there are: torch, openmpi, slurm, single, none"));
  all.erase("DTRAIN_LAUNCHER");
  all.erase("OMPI_COMM_WORLD_RANK");
  CHECK(node_identity(all).launcher == "slurm");
  all.erase("SLURM_STEP_ID");
  CHECK(node_identity(all).launcher == "torch");
}

TEST_CASE("whatever else describes a process describes the node, its master with it") {
  const NodeIdentity tf = node_identity(
      {{"TF_CONFIG", R"({"cluster": {"worker": ["a:7", "b:8"]}, "task": {"type": "worker", "index": 1}})"}});
  CHECK(tf.node_rank == 1);
  CHECK(tf.node_count == 2);
  CHECK(tf.master_addr == "a");
  CHECK(tf.master_port == 7);
  CHECK(tf.launcher == "tf_config");
  // torchrun itself listens on MASTER_PORT
  const NodeIdentity torchrun = node_identity(
      variables("RANK=0 WORLD_SIZE=1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x TORCHELASTIC_USE_AGENT_STORE=True"));
  CHECK(torchrun.master_port == 29501);
  CHECK(node_identity(variables("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h PET_NPROC_PER_NODE=4")).nproc_per_node == "4");
}

TEST_CASE("an elastic program's number of nodes may be a range, and its nodes but node 0 may have any rank") {
  NodeFlags flags;
  flags.is_elastic = true;
  const NodeIdentity pet = node_identity(variables("PET_NODE_RANK=9 PET_NNODES=1:4 MASTER_ADDR=h"), flags);
  CHECK(pet.node_count == 4);
  CHECK(pet.least_nodes == 1);
  CHECK(pet.node_rank == 9);
  flags.node_count = "2:3";
  CHECK(node_identity(variables("PET_NODE_RANK=1 PET_NNODES=1:4 MASTER_ADDR=h"), flags).least_nodes == 2);
  CHECK(node_identity(variables("PET_NODE_RANK=1 PET_NNODES=1:4 MASTER_ADDR=h"), flags).node_count == 3);
  CHECK(error_code_of(variables("MASTER_ADDR=h"), flags) == "no-rank");
  flags.node_rank = "1";
  CHECK(error_code_of({}, flags) == "no-master-addr");
  flags.node_count = "1:1";
  CHECK(error_code_of({}, flags) == "rank-out-of-range");
  flags.node_count = "2";
  CHECK(node_identity(variables("MASTER_ADDR=h"), flags).least_nodes == 0);
  for (const char* const bad : {"3:2", "0:2", ":2", "2:", "1:2:3", "a:b"}) {
    CAPTURE(bad);
    flags.node_count = bad;
    CHECK(error_code_of(variables("MASTER_ADDR=h"), flags) == "bad-integer");
  }
}

TEST_CASE("a number of nodes without this one's rank is an error, not a single node") {
  NodeFlags two;
  two.node_count = "2";
  CHECK(error_code_of(variables("MASTER_ADDR=h"), two) == "no-rank");
  CHECK(outcome::contains(outcome::node_refusal_of({}, two).sentence, "--nnodes='2'"));
  CHECK(error_code_of(variables("PET_NNODES=2 MASTER_ADDR=h")) == "no-rank");
  CHECK(error_code_of(variables("PET_NNODES=1:4")) == "elastic-range");
  CHECK(error_code_of(variables("PET_NNODES=1")) == "");
  NodeFlags rank;
  rank.node_rank = "1";
  CHECK(error_code_of({}, rank) == "rank-out-of-range");
  CHECK(node_identity(variables("PET_NNODES=2 MASTER_ADDR=h"), rank).node_count == 2);
}

TEST_CASE("a launcher in a batch script of several nodes is one node, with a warning") {
  const NodeIdentity node =
      node_identity(variables("SLURM_JOB_ID=5 SLURM_JOB_NUM_NODES=2 SLURM_NTASKS=4 SLURM_PROCID=0"));
  CHECK(node.node_count == 1);
  REQUIRE(node.warnings.size() == 1);
  CHECK(outcome::contains(node.warnings[0], "Slurm job of 2 nodes, not started with srun"));
  CHECK(node_identity(variables("SLURM_JOB_ID=5 SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=4")).warnings.empty());
}

TEST_CASE("several launchers on one node are told how each process is a rank, too") {
  Environment mpirun = mpirun_node();
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  const outcome::Refusal refusal = outcome::node_refusal_of(mpirun);
  CHECK(refusal.code == "many-launchers");
  CHECK(outcome::contains(refusal.sentence, "mpirun -npernode 1"));
  CHECK(refusal.sentence.find("with launch::Any in the program's policy, leave --nproc-per-node out and each process "
                              "is a rank") != std::string::npos);
}

TEST_CASE("a number of nodes alone is refused with what to set beside it") {
  NodeFlags flags;
  flags.node_count = "3";
  const outcome::Refusal refusal = outcome::node_refusal_of({}, flags);
  CHECK(refusal.code == "no-rank");
  CHECK(outcome::contains(refusal.sentence, "set --node-rank to 0..2, another on each node"));
}

TEST_CASE("a range of nodes alone is refused with its own value, and with what a pod of Kubeflow can set") {
  NodeFlags flags;
  flags.is_elastic = true;
  const Environment pod = variables("PET_NNODES=1:3 PET_NPROC_PER_NODE=2 PET_RDZV_ENDPOINT=job-worker-0:23456");
  const outcome::Refusal refusal = outcome::node_refusal_of(pod, flags);
  CHECK(refusal.code == "no-rank");
  CHECK_CONTAINS(refusal.sentence, "PET_NNODES='1:3' says how many nodes there are, but not which of them this is; ",
                 "set PET_NODE_RANK to 0 on the node whose address is the MASTER_ADDR of all, and to another number on",
                 "(in a pod of Kubeflow: PET_NODE_RANK=${HOSTNAME##*-} MASTER_ADDR=${PET_RDZV_ENDPOINT%:*})");
  Environment mended = pod;
  mended.insert({{"PET_NODE_RANK", "2"}, {"MASTER_ADDR", "job-worker-0"}});
  CHECK(node_identity(mended, flags).node_rank == 2);
  flags.node_count = "2:4";
  const std::string by_flag = outcome::node_refusal_of({}, flags).sentence;
  CHECK_CONTAINS(by_flag, "--nnodes='2:4' says how many", "set --node-rank to 0 on the node whose address");
  CHECK(!outcome::contains(by_flag, "Kubeflow"));
}
