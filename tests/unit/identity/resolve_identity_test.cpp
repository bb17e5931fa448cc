#include "unit/identity/prelude.hpp"

namespace {

std::string error_code_of(const Environment& environment, std::vector<const char*> arguments = {}) {
  return outcome::refusal_of(environment, std::move(arguments)).code;
}

std::string sentence_of(const Environment& environment, std::vector<const char*> arguments = {}) {
  return outcome::refusal_of(environment, std::move(arguments)).sentence;
}

}  // namespace

TEST_CASE("an error names the variable, its value and what to set") {
  const std::string not_a_number = sentence_of(variables("RANK=1x WORLD_SIZE=2"));
  CHECK_CONTAINS(not_a_number, "RANK='1x'", "unset it");
  const std::string port = sentence_of(variables("RANK=0 WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=70000"));
  CHECK_CONTAINS(port, "MASTER_PORT='70000'", "1 to 65535");
  CHECK_CONTAINS(sentence_of(variables("WORLD_SIZE=8")), "WORLD_SIZE=8 is set but RANK is not");
  CHECK_CONTAINS(sentence_of(variables("RANK=3")), "WORLD_SIZE");
  CHECK_CONTAINS(sentence_of(variables("RANK=2 WORLD_SIZE=2")), "rank 2 is not below world size 2");
  CHECK_CONTAINS(sentence_of(variables("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1")), "set MASTER_ADDR");
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
  CHECK(error_code_of(variables("MASTER_PORT=65535")) == "");
}

TEST_CASE("an empty value counts as unset") {
  const ProcessIdentity who = identity::process_identity(variables("RANK= WORLD_SIZE= DTRAIN_LAUNCHER="));
  CHECK(who.launcher == "single");
}

TEST_CASE("the local rank is read from the variable or from any spelling of the argument") {
  const Environment job = variables("RANK=3 WORLD_SIZE=4 MASTER_ADDR=h");
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
  const ProcessIdentity who = identity::process_identity(variables("RANK=0 WORLD_SIZE=1 NODE_RANK=5"));
  CHECK(who.local_rank == 0);
  CHECK(who.local_world_size == 1);
  CHECK(who.node_rank == 0);
  CHECK(who.node_count == 1);
  CHECK(who.master_addr == "127.0.0.1");
  CHECK(error_code_of(variables("RANK=0 WORLD_SIZE=1 LOCAL_RANK=1")) == "rank-out-of-range");
  CHECK(error_code_of(variables("RANK=0 WORLD_SIZE=0")) == "rank-out-of-range");
}

TEST_CASE("the port after 65535 is the first above the ephemeral range") {
  const ProcessIdentity who = identity::process_identity(
      variables("RANK=0 WORLD_SIZE=1 MASTER_PORT=65535 TORCHELASTIC_RUN_ID=x TORCHELASTIC_USE_AGENT_STORE=True"));
  CHECK(who.master_port == 61440);
}

TEST_CASE("one Azure node makes the local size certain, several leave it a guess") {
  Environment job = variables("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=h");
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

TEST_CASE("mpirun's node is a guess where local ranks follow the ranks, and none where ranks go round the nodes") {
  const auto on_two_nodes = [](int rank, int local_rank) {
    Environment job = variables("OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=h");
    job["OMPI_MCA_orte_num_nodes"] = "2";
    job["OMPI_COMM_WORLD_RANK"] = std::to_string(rank);
    job["OMPI_COMM_WORLD_LOCAL_RANK"] = std::to_string(local_rank);
    return identity::process_identity(job);
  };
  CHECK(on_two_nodes(2, 0).node_rank == 1);
  CHECK(on_two_nodes(2, 0).is_provisional("node_rank"));
  CHECK(!on_two_nodes(2, 1).node_rank);  // mpirun --map-by node: ranks 0 and 2 are on the first node
}

TEST_CASE("DTRAIN_LAUNCHER forces a source that is there, or none") {
  Environment job = variables("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 DTRAIN_RANK=0 DTRAIN_WORLD_SIZE=1");
  CHECK(identity::process_identity(job).launcher == "dtrain");
  job["DTRAIN_LAUNCHER"] = "torch";
  CHECK(identity::process_identity(job).rank == 1);
  job["DTRAIN_LAUNCHER"] = "none";
  CHECK(identity::process_identity(job).launcher == "single");
  for (const char* absent : {"k8s", "Torch", "nobody", "slurm"}) {
    job["DTRAIN_LAUNCHER"] = absent;
    CHECK(error_code_of(job) == "unknown-launcher");
    CHECK_CONTAINS(sentence_of(job), "there are: dtrain, torch, single, none");
  }
  CHECK_CONTAINS(sentence_of(job),
                 "names no launcher whose variables are set: not set for it: SLURM_PROCID, "
                 "SLURM_STEP_ID, SLURM_STEP_NUM_TASKS; there are");
  job["SLURM_PROCID"] = "1";
  CHECK_CONTAINS(sentence_of(job), "not set for it: SLURM_STEP_ID, SLURM_STEP_NUM_TASKS; there are");
  job["DTRAIN_LAUNCHER"] = "slurmm";
  CHECK_CONTAINS(
      sentence_of(job),
      "DTRAIN_LAUNCHER='slurmm' names no launcher whose variables are set, nor one that dtrain knows (dtrain, "
      "torch, horovod, openmpi, jsrun, mvapich, flux, pmi, slurm, tf_config, vertex, sagemaker, k8s, node, "
      "pet, single, none); there are: dtrain, torch, single, none; set one of them, or unset it");
}

TEST_CASE("DTRAIN_LAUNCHER without any launcher's variables is an error that names the variables to set") {
  CHECK_CONTAINS(
      sentence_of(variables("DTRAIN_LAUNCHER=slurm SLURM_PROCID=1")),
      "DTRAIN_LAUNCHER='slurm' names a launcher, but its variables are not set, and no other launcher's are; "
      "set SLURM_STEP_ID, SLURM_STEP_NUM_TASKS, or unset DTRAIN_LAUNCHER");
  CHECK_CONTAINS(sentence_of({{"DTRAIN_LAUNCHER", "tf_config"}, {"TF_CONFIG", "{}"}}),
                 "and no other launcher's are; set them for every process, or unset DTRAIN_LAUNCHER");
  const std::string unknown = sentence_of(variables("DTRAIN_LAUNCHER=slurmm"));
  CHECK_CONTAINS(unknown, "DTRAIN_LAUNCHER='slurmm' names no launcher that dtrain knows (dtrain, torch, ",
                 "single, none), and no launcher's variables are set; unset DTRAIN_LAUNCHER");
}

TEST_CASE("half an environment is an error that helps, not a single process") {
  CHECK(error_code_of(variables("PET_NNODES=2")) == "node-level-env");
  CHECK(error_code_of(variables("PET_NNODES=1 PET_NPROC_PER_NODE=4")) == "node-level-env");
  CHECK(error_code_of(variables("PET_NNODES=1 PET_NPROC_PER_NODE=1")) == "");
  CHECK(error_code_of(variables("PMIX_RANK=0")) == "pmix-only");
  CHECK(error_code_of(variables("WORLD_SIZE=1")) == "");
  CHECK(error_code_of(variables("RANK=0")) == "no-world-size");
  CHECK(error_code_of(variables("PMIX_RANK=0 WORLD_SIZE=4")) == "no-rank");
  CHECK(error_code_of(variables("DTRAIN_RANK=1")) == "half-identity");
  const ProcessIdentity half = identity::process_identity(variables("DTRAIN_RANK=1 RANK=0 WORLD_SIZE=1"));
  CHECK(half.launcher == "torch");
  CHECK(half.warnings.size() == 1);
}

TEST_CASE("an indexed job with a size takes its rank from the index") {
  Environment job = variables("JOB_COMPLETION_INDEX=2 WORLD_SIZE=3");
  CHECK(error_code_of(job) == "no-master-addr");
  job["MASTER_ADDR"] = "job-0";
  const ProcessIdentity who = identity::process_identity(job);
  CHECK(who.launcher == "k8s");
  CHECK(who.rank == 2);
  CHECK(who.world_size == 3);
}

TEST_CASE("a Slurm allocation without srun is one process, with a warning") {
  const ProcessIdentity who = identity::process_identity(variables("SLURM_JOB_ID=5 SLURM_NTASKS=4 SLURM_PROCID=0"));
  CHECK(who.launcher == "single");
  REQUIRE(who.warnings.size() == 1);
  CHECK_CONTAINS(who.warnings[0], "Slurm job of 4 tasks, not started with srun");
}

TEST_CASE("RANK that contradicts what started the process is an error, unless torchrun set it") {
  const std::vector<Environment> others{
      variables("SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=6"),
      variables("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=6"),
      variables("PMI_RANK=3 PMI_SIZE=6"),
  };
  for (Environment job : others) {
    const std::string stated = job.begin()->first == "SLURM_PROCID" ? "SLURM_PROCID='3'" : job.begin()->first + "='3'";
    job.insert({{"RANK", "0"}, {"WORLD_SIZE", "6"}, {"MASTER_ADDR", "h"}});
    CAPTURE(stated);
    CHECK(error_code_of(job) == "conflict-rank");
    CHECK_CONTAINS(sentence_of(job), "RANK='0' but " + stated + ", both for 6 processes");
    job["TORCHELASTIC_RUN_ID"] = "x";
    CHECK(error_code_of(job) == "");
    job.erase("TORCHELASTIC_RUN_ID");
    job["RANK"] = "3";
    CHECK(error_code_of(job) == "");
    job["RANK"] = "0";
    job["WORLD_SIZE"] = "4";  // another job: its launcher's variables are left over
    CHECK(error_code_of(job) == "");
    CHECK(identity::process_identity(job).ignored.size() == 1);
    job["DTRAIN_RANK"] = "1";
    job["DTRAIN_WORLD_SIZE"] = "1";
    job["WORLD_SIZE"] = "6";
    CHECK(error_code_of(job) == "rank-out-of-range");
  }
  CHECK(error_code_of(variables(
            "RANK=0 WORLD_SIZE=6 MASTER_ADDR=h SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=6 SLURM_STEP_ID=4294967291")) == "");
}

TEST_CASE("RANK=0 and WORLD_SIZE=1 beside any launcher of several is an error that names both and every remedy") {
  const std::vector<std::pair<std::string, std::string>> launchers{
      {"slurm", "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2"},
      {"horovod", "HOROVOD_RANK=1 HOROVOD_SIZE=2"},
      {"openmpi", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 MASTER_ADDR=h"},
      {"jsrun", "JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2"},
      {"mvapich", "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2"},
      {"flux", "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2"},
      {"pmi", "PMI_RANK=1 PMI_SIZE=2"}};
  for (const auto& [launcher, of_launcher] : launchers) {
    CAPTURE(launcher);
    Environment job = variables(of_launcher + " RANK=0 WORLD_SIZE=1 MASTER_ADDR=h");
    CHECK(error_code_of(job) == "conflict-rank");
    CHECK_CONTAINS(sentence_of(job), "RANK='0', WORLD_SIZE='1' say that this process is alone, but ", "='1', ",
                   "='2' that it is one of 2; ",
                   "Unset RANK and WORLD_SIZE, or set DTRAIN_LAUNCHER=" + launcher + ", or DTRAIN_LAUNCHER=none");
    job["DTRAIN_LAUNCHER"] = launcher;
    CHECK(identity::process_identity(job).world_size == 2);
    CHECK(identity::process_identity(job).ignored == std::vector<std::string>{"RANK and WORLD_SIZE"});
    for (const char* const alone : {"none", "torch"}) {
      job["DTRAIN_LAUNCHER"] = alone;
      CHECK(identity::process_identity(job).world_size == 1);
    }
    job.erase("DTRAIN_LAUNCHER");
    for (const char* const inner : {"TORCHELASTIC_RUN_ID", "CROSS_SIZE", "RAY_JOB_ID"}) {
      Environment nested = job;
      nested[inner] = "1";
      CHECK(identity::process_identity(nested).launcher == "torch");
    }
    CHECK(error_code_of(job, {"train", "--local_rank=0"}) == "");
    job.erase("RANK");
    job.erase("WORLD_SIZE");
    CHECK(identity::process_identity(job).rank == 1);
  }
}

TEST_CASE("a step or an Open MPI that agrees fills what RANK leaves open, and only then") {
  Environment job = variables(
      "RANK=3 WORLD_SIZE=6 MASTER_ADDR=h SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=6 SLURM_LOCALID=1 "
      "SLURM_STEP_NUM_NODES=3 SLURM_STEP_TASKS_PER_NODE=2(x3) SLURM_NODEID=1 AZUREML_NODE_COUNT=3");
  const ProcessIdentity filled = identity::process_identity(job);
  CHECK(filled.local_rank == 1);
  CHECK(filled.local_world_size == 2);
  CHECK(filled.node_rank == 1);
  CHECK(filled.provisional.empty());  // Slurm's count is certain, a division by the number of nodes is not
  job["SLURM_STEP_NUM_TASKS"] = "3";
  CHECK(!identity::process_identity(job).local_rank);
  CHECK(identity::process_identity(job).is_provisional("local_world_size"));
  const Environment mpi = variables(
      "RANK=3 WORLD_SIZE=6 MASTER_ADDR=h OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_LOCAL_RANK=1 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2");
  CHECK(identity::process_identity(mpi).launcher == "torch");
  CHECK(identity::process_identity(mpi).local_rank == 1);
  CHECK(identity::process_identity(mpi).local_world_size == 2);
  CHECK(!identity::process_identity(mpi).node_count);
}

TEST_CASE("PMI yields to a Slurm step that says the same, and can be forced all the same") {
  Environment job = variables(
      "PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=2 SLURM_GTIDS=0,1");
  CHECK(identity::process_identity(job).launcher == "slurm");
  CHECK(identity::process_identity(job).local_rank == 1);
  CHECK(identity::process_identity(job).local_world_size == 2);
  job["DTRAIN_LAUNCHER"] = "pmi";
  job["MASTER_ADDR"] = "h";
  CHECK(identity::process_identity(job).launcher == "pmi");
  job.erase("DTRAIN_LAUNCHER");
  job["SLURM_PROCID"] = "0";  // the step of mpiexec's own proxies
  CHECK(identity::process_identity(job).launcher == "pmi");
  job["SLURM_GTIDS"] = "0,x";
  job.erase("PMI_RANK");
  CHECK(error_code_of(job) == "bad-integer");
  CHECK_CONTAINS(sentence_of(job), "SLURM_GTIDS='0,x'");
}

TEST_CASE("a special or missing step of Slurm is none, and the allocation's number of tasks only stands in") {
  for (const char* special : {"4294967290", "4294967291", "4294967292", "4294967293", ""}) {
    CAPTURE(special);
    CHECK(identity::process_identity({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", special}})
              .launcher == "single");
  }
  Environment step = variables("SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_STEP_ID=4294967289 MASTER_ADDR=h");
  CHECK(identity::process_identity(step).world_size == 4);
  step["SLURM_STEP_NUM_TASKS"] = "2";
  CHECK(identity::process_identity(step).world_size == 2);
  step["SLURM_STEP_ID"] = "batch";
  CHECK(error_code_of(step) == "bad-integer");
}

TEST_CASE("the attempt and the job's name are the launcher's, where it counts and names them") {
  const Environment torchrun = variables("RANK=0 WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=3");
  CHECK(identity::process_identity(torchrun).attempt == 0);
  Environment elastic = torchrun;
  elastic["TORCHELASTIC_RUN_ID"] = "run-7";
  CHECK(identity::process_identity(elastic).attempt == 3);
  CHECK(identity::process_identity(elastic).job == "run-7");
  CHECK(identity::process_identity(variables("DTRAIN_RANK=0 DTRAIN_WORLD_SIZE=1 DTRAIN_ATTEMPT=2")).attempt == 2);
  elastic["TORCHELASTIC_RESTART_COUNT"] = "x";
  CHECK(error_code_of(elastic) == "bad-integer");
}

TEST_CASE("the line for people says the source, what is learnt later, what is a guess and what was ignored") {
  CHECK(to_string(identity::process_identity({})) ==
        "identity from single: rank 0 of 1, local rank 0 of 1, node 0 of 1, store at 127.0.0.1:29500");
  CHECK(to_string(identity::process_identity(
            variables("RANK=3 WORLD_SIZE=4 MASTER_ADDR=h0 PMI_RANK=0 PMI_SIZE=2 SM_HOSTS=[] SM_CURRENT_HOST=a"))) ==
        "identity from RANK and WORLD_SIZE: rank 3 of 4, local rank learnt after connecting, node learnt after "
        "connecting, store at h0:29500; ignored: pmi, sagemaker");
  CHECK(
      to_string(identity::process_identity({{"OMPI_COMM_WORLD_RANK", "1"},
                                            {"OMPI_COMM_WORLD_SIZE", "2"},
                                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                            {"OMPI_MCA_orte_num_nodes", "2"},
                                            {"OMPI_MCA_orte_hnp_uri", "65536.0;tcp6://[fd00::2]:1"}})) ==
      "identity from openmpi: rank 1 of 2, local rank 0 of 1, node 1 of 2 (a guess, confirmed after connecting), store "
      "at [fd00::2]:61441 (a guess)");
  CHECK(to_string(identity::process_identity(
            {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a\nb"}})) ==
        "identity from RANK and WORLD_SIZE: rank 1 of 4, local rank 1 of a number learnt after connecting, node learnt "
        "after connecting, store at a\\nb:29500");
}

TEST_CASE("every error code has a sentence with the variable and its value") {
  struct Case {
    const char* code;
    Environment environment;
    std::vector<const char*> stated;
  };
  const Environment two = variables("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2");
  const std::vector<Case> cases{
      {"bad-integer", variables("PMI_RANK=1x PMI_SIZE=2"), {"PMI_RANK='1x'", "decimal digits"}},
      {"bad-integer", variables("FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=0"), {"FLUX_JOB_NNODES='0'"}},
      {"bad-port", variables("PMI_RANK=0 PMI_SIZE=1 MASTER_PORT=x"), {"MASTER_PORT='x'", "1 to 65535"}},
      {"rank-out-of-range", variables("HOROVOD_RANK=2 HOROVOD_SIZE=2"), {"HOROVOD_RANK='2'", "HOROVOD_SIZE='2'"}},
      {"rank-out-of-range",
       variables("MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=3 MV2_COMM_WORLD_LOCAL_SIZE=2"),
       {"MV2_COMM_WORLD_LOCAL_RANK='3'", "MV2_COMM_WORLD_LOCAL_SIZE='2'"}},
      {"rank-out-of-range",
       variables("RANK=0 WORLD_SIZE=4 GROUP_RANK=2 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x"),
       {"GROUP_RANK='2'", "GROUP_WORLD_SIZE='2'"}},
      {"rank-out-of-range",
       variables("JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_SIZE=3"),
       {"JSM_NAMESPACE_LOCAL_SIZE='3'", "JSM_NAMESPACE_SIZE='2'"}},
      {"rank-out-of-range",
       variables("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=0"),
       {"MPI_LOCALNRANKS='0'", "local world size is 0"}},
      {"no-master-addr", two, {"MASTER_ADDR", "OMPI_COMM_WORLD_RANK='1'", "mpirun -x MASTER_ADDR=HOST"}},
      {"no-master-addr", variables("PMI_RANK=0 PMI_SIZE=2"), {"MASTER_ADDR", "PMI_SIZE='2'", "-genv MASTER_ADDR"}},
      {"no-master-addr", variables("JOB_COMPLETION_INDEX=0 WORLD_SIZE=2"), {"set MASTER_ADDR"}},
      {"no-rank", variables("WORLD_SIZE=8"), {"WORLD_SIZE=8", "set RANK"}},
      {"no-world-size", variables("RANK=8"), {"RANK='8'", "set WORLD_SIZE"}},
      {"pmix-only", variables("PMIX_RANK=8"), {"PMIX_RANK='8'", "set DTRAIN_RANK"}},
      {"node-level-env", variables("PET_NNODES=1:4"), {"PET_NNODES='1:4'", "PerNode"}},
      {"elastic-range", variables("DTRAIN_WORLD_SIZE=1:4"), {"DTRAIN_WORLD_SIZE='1:4' is a range", "dtrain::Elastic"}},
      {"elastic-range",
       variables("DTRAIN_RANK=0 DTRAIN_WORLD_SIZE=1:4 MASTER_ADDR=h"),
       {"DTRAIN_WORLD_SIZE='1:4' is a range", "one number"}},
      {"bad-integer",
       variables("DTRAIN_LAUNCHER=dtrain DTRAIN_RANK=0 DTRAIN_WORLD_SIZE=1:4"),
       {"DTRAIN_WORLD_SIZE='1:4'", "decimal digits"}},
      {"bad-tasks-per-node",
       variables("SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2x"),
       {"SLURM_STEP_TASKS_PER_NODE='2x'"}},
      {"unknown-launcher",
       variables("DTRAIN_LAUNCHER=mpi PMI_RANK=0 PMI_SIZE=1"),
       {"DTRAIN_LAUNCHER='mpi'", "there are: pmi, single, none"}},
      {"conflict-local-rank", variables("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1"), {"LOCAL_RANK=1", "--local_rank=0"}},
  };
  for (const Case& wrong : cases) {
    const bool argument = std::string(wrong.code) == "conflict-local-rank";
    const outcome::Refusal refused = outcome::refusal_of(
        wrong.environment, argument ? std::vector<const char*>{"train", "--local_rank=0"} : std::vector<const char*>{});
    CAPTURE(refused.sentence);
    CHECK(refused.code == wrong.code);
    for (const char* part : wrong.stated)
      CHECK_CONTAINS(refused.sentence, part);
  }
}
