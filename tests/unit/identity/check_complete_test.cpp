#include "unit/identity/prelude.hpp"

namespace {

struct Half {
  Environment environment;
  std::vector<const char*> stated;
};

std::vector<Half> halves() {
  std::vector<Half> all{
      {variables("NODE_RANK=0 NNODES=2"), {"NODE_RANK='0'", "NNODES='2'", "RANK and WORLD_SIZE are not set"}},
      {variables("NODE_RANK=1 AZUREML_NODE_COUNT=2"), {"NODE_RANK='1'", "AZUREML_NODE_COUNT='2'", "PerNode"}},
      {variables("NODE_RANK=1"),
       {"NODE_RANK='1'", "NNODES is not set; set NODE_RANK and NNODES for every node's launch::"}},
      {variables("NODE_RANK=2 MASTER_ADDR=h"), {"NODE_RANK='2'", "NNODES is not set"}},
      {variables("NNODES=2"),
       {"NNODES='2'", "NODE_RANK is not set; set NODE_RANK and NNODES for every node's launch::"}},
      {variables("NNODES=1:4"), {"NNODES='1:4'", "NODE_RANK is not set"}},
      {variables("SLURM_PROCID=1"), {"SLURM_PROCID='1'", "SLURM_STEP_ID is not set", "srun --export=ALL"}},
      {variables("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_ID=7"),
       {"SLURM_PROCID='1', SLURM_STEP_NUM_TASKS='4'", "SLURM_STEP_ID is not set"}},
      {variables("PALS_RANKID=0"), {"PALS_RANKID='0'", "PMI_RANK and PMI_SIZE are not set"}},
      {variables("OMPI_COMM_WORLD_LOCAL_RANK=1"),
       {"OMPI_COMM_WORLD_LOCAL_RANK='1'", "OMPI_COMM_WORLD_SIZE are not set"}},
      {variables("SM_CURRENT_HOST=algo-1"), {"SM_CURRENT_HOST='algo-1'", "SM_HOSTS is not set"}},
      {{{"SM_HOSTS", R"(["algo-1", "algo-2"])"}}, {"SM_HOSTS='[", "SM_CURRENT_HOST is not set"}},
      {variables("PET_NODE_RANK=0"), {"PET_NODE_RANK='0'", "PET_NNODES is not set"}},
      {variables("LOCAL_RANK=1"), {"LOCAL_RANK='1'", "RANK and WORLD_SIZE are not set"}},
      {variables("LOCAL_WORLD_SIZE=2 LOCAL_RANK=0"), {"LOCAL_WORLD_SIZE='2'", "RANK and WORLD_SIZE are not set"}},
      {variables("SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_JOB_ID=7"),
       {"SLURM_PROCID='2'", "SLURM_STEP_ID='0'", "SLURM_STEP_NUM_TASKS is not set"}},
      {variables("VC_TASK_INDEX=1 VC_WORKER_NUM=2"),
       {"VC_TASK_INDEX='1', VC_WORKER_NUM='2'", "NODE_RANK and NNODES are not set",
        "set NODE_RANK=$VC_TASK_INDEX, NNODES=$VC_WORKER_NUM and MASTER_ADDR=${VC_WORKER_HOSTS%%,*} for a launch::"}},
      {variables("VC_TRAIN_HOSTS=a,b VC_TRAIN_NUM=2"), {"VC_TRAIN_NUM='2'", "MASTER_ADDR=${VC_TRAIN_HOSTS%%,*}"}},
      {variables("VC_TASK_INDEX=0 VC_MASTER_NUM=1 VC_WORKER_NUM=3"),
       {"VC_TASK_INDEX='0', VC_MASTER_NUM='1', VC_WORKER_NUM='3'",
        "NODE_RANK=0..3 (another in each pod), NNODES=4 and"}},
      {variables("SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2"),
       {"SKYPILOT_NODE_RANK='1', SKYPILOT_NUM_NODES='2'",
        "set NODE_RANK=$SKYPILOT_NODE_RANK, NNODES=$SKYPILOT_NUM_NODES and MASTER_ADDR=$(echo \"$SKYPILOT_NODE_IPS\" | "
        "head -n1) for a launch::PerNode program, or RANK, WORLD_SIZE and MASTER_ADDR for every process of another"}},
      {variables("SKYPILOT_NODE_RANK=1"), {"SKYPILOT_NODE_RANK='1'", "NODE_RANK and NNODES are not set"}},
      {variables("LWS_GROUP_SIZE=2"), {"LWS_GROUP_SIZE='2'", "MASTER_ADDR=$LWS_LEADER_ADDRESS for"}},
      {variables("LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=0"), {"LWS_WORKER_INDEX='0', LWS_GROUP_SIZE='2'"}},
      {variables("DSTACK_NODES_NUM=2 DSTACK_NODE_RANK=0"), {"DSTACK_NODE_RANK='0'", "$DSTACK_MASTER_NODE_IP"}},
      {variables("AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1"),
       {"AWS_BATCH_JOB_NODE_INDEX='1'", "main node"}},
  };
  for (const auto& [rank, size] : std::vector<std::pair<std::string, std::string>>{
           {"DTRAIN_RANK", "DTRAIN_WORLD_SIZE"},
           {"HOROVOD_RANK", "HOROVOD_SIZE"},
           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
           {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
           {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
           {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
           {"PMI_RANK", "PMI_SIZE"},
       }) {
    static std::vector<std::string> kept;
    kept.reserve(64);  // so that what is pointed at stays
    for (const auto& [set, missing, value] : {std::tuple(rank, size, "0"), std::tuple(size, rank, "3")}) {
      const std::string& stated = kept.emplace_back(set + "='" + value + "'");
      const std::string& lacks = kept.emplace_back(missing + " is not set; set " + missing + " for every process");
      all.push_back({{{set, value}}, {stated.c_str(), lacks.c_str()}});
    }
  }
  return all;
}

}  // namespace

TEST_CASE("half an identity is an error that names the variable, what is missing, and how to be alone") {
  for (const Half& half : halves()) {
    Environment environment = half.environment;
    const outcome::Refusal refused = refusal_of(environment);
    CAPTURE(environment.begin()->first);
    CAPTURE(refused.sentence);
    CHECK(refused.code == "half-identity");
    CHECK_CONTAINS(refused.sentence, "says that this process is one of several, but ",
                   ", or set DTRAIN_LAUNCHER=none for a process that is meant to be alone");
    for (const char* part : half.stated)
      CHECK_CONTAINS(refused.sentence, part);
    environment["DTRAIN_LAUNCHER"] = "none";
    CHECK(identity::process_identity(environment).launcher == "single");
    CHECK(identity::process_identity(environment).world_size == 1);
  }
}

TEST_CASE("beside a complete source no half of another one matters") {
  for (Half half : halves()) {
    const std::string first = half.environment.begin()->first;
    CAPTURE(first);
    half.environment.insert({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
    half.environment.erase("LOCAL_RANK");  // which RANK and WORLD_SIZE would read
    half.environment.erase("LOCAL_WORLD_SIZE");
    CHECK(refusal_of(half.environment).code == "");
  }
}

TEST_CASE("a size of 1, a first local rank, and one host say nothing") {
  for (const Environment& environment : std::vector<Environment>{
           variables("OMPI_COMM_WORLD_SIZE=1"),
           variables("PMI_SIZE=1"),
           variables("HOROVOD_SIZE=1"),
           variables("DTRAIN_WORLD_SIZE=1"),
           variables("FLUX_JOB_SIZE=1"),
           variables("LOCAL_RANK=0"),
           variables("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"),
           variables("NODE_RANK=0 NNODES=1"),
           variables("NODE_RANK=0"),
           variables("NNODES=1"),
           variables("PET_NODE_RANK=0 PET_NNODES=1"),
           {{"SM_HOSTS", R"(["algo-1"])"}},
           variables("SLURM_PROCID=0 SLURM_STEP_ID=4294967291"),
           variables("SLURM_PROCID=0"),
           variables("PMIX_RANK=0 PMI_SIZE=1"),
           variables("SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=1 SKYPILOT_NODE_IPS=10.0.0.1"),
           variables("LWS_GROUP_SIZE=1 LWS_WORKER_INDEX=0"),
           variables("AWS_BATCH_JOB_NUM_NODES=1 AWS_BATCH_JOB_NODE_INDEX=0"),
           variables("DSTACK_NODES_NUM=1 DSTACK_NODE_RANK=0"),
           variables("VC_TASK_INDEX=0 VC_WORKER_NUM=1 VC_WORKER_HOSTS=a"),
           {{"VC_TASK_INDEX", "1"}, {"VC_WORKE\x1f_NUM", "2"}},
           variables("VC_CHANNELS_NUM=16"),
       }) {
    CAPTURE(environment.begin()->first);
    CHECK(refusal_of(environment).sentence == "");
    CHECK(identity::process_identity(environment).launcher == "single");
  }
}

TEST_CASE("a half that is no number is a bad integer") {
  for (const char* variable : {"PMI_RANK", "PMI_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PALS_RANKID", "PET_NODE_RANK",
                               "DTRAIN_RANK", "FLUX_JOB_SIZE", "SKYPILOT_NUM_NODES", "LWS_WORKER_INDEX"}) {
    CAPTURE(variable);
    CHECK(refusal_of({{variable, "1x"}}).code == "bad-integer");
  }
  CHECK(refusal_of(variables("SLURM_PROCID=0 SLURM_STEP_ID=batch")).code == "bad-integer");
}

TEST_CASE("a rank of PMIx without its size is one of several, whatever size another launcher left") {
  CHECK(refusal_of(variables("PMIX_RANK=0")).code == "pmix-only");
  CHECK(refusal_of(variables("PMIX_RANK=0 PMI_SIZE=4")).code == "half-identity");
  CHECK(refusal_of(variables("PMIX_RANK=0 SLURM_NTASKS=4")).code == "pmix-only");
}

TEST_CASE("a pod of a sweep and a batch script are alone, with a warning each, unless they are meant to be") {
  Environment sweep = variables("JOB_COMPLETION_INDEX=2");
  identity::ProcessIdentity who = identity::process_identity(sweep);
  CHECK(who.launcher == "single");
  REQUIRE(who.warnings.size() == 1);
  CHECK(who.warnings[0] ==
        "JOB_COMPLETION_INDEX='2' is set without WORLD_SIZE: this is one process; set WORLD_SIZE and MASTER_ADDR in "
        "the manifest to make the pods one job");
  sweep["DTRAIN_LAUNCHER"] = "none";
  CHECK(identity::process_identity(sweep).warnings.empty());
  who = identity::process_identity(variables("VC_TASK_INDEX=2 VK_TASK_INDEX=2"));
  REQUIRE(who.warnings.size() == 1);
  CHECK_CONTAINS(who.warnings[0], "VC_TASK_INDEX='2' is set without RANK and WORLD_SIZE: this is one process");
  who = identity::process_identity(variables("SLURM_JOB_ID=5 SLURM_JOB_NUM_NODES=3 SLURM_NTASKS=1"));
  REQUIRE(who.warnings.size() == 1);
  CHECK_CONTAINS(who.warnings[0], "Slurm job of 3 nodes, not started with srun: this is one process");
  CHECK(identity::process_identity(variables("SLURM_JOB_ID=5 SLURM_JOB_NUM_NODES=1")).warnings.empty());
}

TEST_CASE("a value of the empty name is no variable") {
  const identity::ProcessIdentity who = identity::process_identity({{"", "7"}});
  CHECK(who.launcher == "single");
  CHECK(who.warnings.empty());
}

TEST_CASE("a first local rank or a first node alone is alone, with a warning that names the variable") {
  for (const Half& half : std::vector<Half>{
           {variables("LOCAL_RANK=0"),
            {"LOCAL_RANK='0' is set without RANK and WORLD_SIZE: this is one process; set both"}},
           {variables("OMPI_COMM_WORLD_LOCAL_RANK=0"),
            {"OMPI_COMM_WORLD_LOCAL_RANK='0' is set without OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE: this is "
             "one"}},
           {variables("NODE_RANK=0 MASTER_ADDR=h"),
            {"NODE_RANK='0', MASTER_ADDR='h' are set without NNODES: this is a job of its own, without other "
             "nodes; "}}}) {
    CAPTURE(half.stated[0]);
    Environment alone = half.environment;
    const identity::ProcessIdentity who = identity::process_identity(alone);
    CHECK(who.world_size == 1);
    REQUIRE(who.warnings.size() == 1);
    CHECK_CONTAINS(who.warnings[0], half.stated[0]);
    const bool of_node = alone.count("NODE_RANK") == 1;
    const std::vector<std::string> of_launcher = identity::node_identity(alone).warnings;
    CHECK(of_launcher == (of_node ? who.warnings : std::vector<std::string>{}));
    alone["DTRAIN_LAUNCHER"] = "none";
    CHECK(identity::process_identity(alone).warnings.empty());
    CHECK(identity::node_identity(alone).warnings.empty());
  }
}

TEST_CASE("half of a node's identity is an error for a per-node launcher too, and --nnodes=1 ends the doubt") {
  const Environment half = variables("PET_NODE_RANK=1");
  CHECK(outcome::node_refusal_of(half).code == "half-identity");
  CHECK(outcome::node_refusal_of(variables("NODE_RANK=1 MASTER_ADDR=h")).code == "half-identity");
  CHECK(outcome::node_refusal_of(variables("NNODES=2 MASTER_ADDR=h")).code == "half-identity");
  identity::NodeFlags count;
  count.node_count = "2";
  CHECK(outcome::node_refusal_of(variables("NODE_RANK=1 MASTER_ADDR=h"), count).code == "");
  identity::NodeFlags alone;
  alone.node_count = "1";
  CHECK(outcome::node_refusal_of(half, alone).code == "");
  CHECK(outcome::node_refusal_of(variables("NODE_RANK=1 NNODES=2 MASTER_ADDR=h")).code == "");
}

TEST_CASE("where RANK and WORLD_SIZE were set by hand no sentence speaks of torch") {
  const Environment job = variables("RANK=1 WORLD_SIZE=4 MASTER_ADDR=h");
  const identity::ProcessIdentity who = identity::process_identity(job);
  CHECK(who.launcher == "torch");
  CHECK_CONTAINS(to_string(who), "identity from RANK and WORLD_SIZE: rank 1 of 4");
  CHECK_FALSE(contains(to_string(who), "torch"));
  Environment elastic = job;
  elastic["TORCHELASTIC_RUN_ID"] = "none";
  CHECK_CONTAINS(to_string(identity::process_identity(elastic)), "identity from torch: rank 1 of 4");
  const std::string homeless = refusal_of(variables("RANK=1 WORLD_SIZE=4")).sentence;
  CHECK_CONTAINS(homeless, "MASTER_ADDR is not set, and nothing says that all 4 processes run on one node");
  CHECK_FALSE(contains(homeless, "torch"));
  const identity::ProcessIdentity forced =
      identity::process_identity(variables("RANK=1 WORLD_SIZE=4 PMI_RANK=0 PMI_SIZE=1 DTRAIN_LAUNCHER=pmi"));
  CHECK_CONTAINS(to_string(forced), "ignored: RANK and WORLD_SIZE");
}
