#include "dtrain/identity/job_name.hpp"
#include "unit/identity/prelude.hpp"

namespace {

Environment joined(Environment a, const Environment& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Environment step =
    variables("SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_JOB_ID=262 MASTER_ADDR=h SLURM_STEP_NUM_TASKS=4");
const Environment mpirun = variables("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 MASTER_ADDR=h");
const Environment by_hand = variables("RANK=1 WORLD_SIZE=4 MASTER_ADDR=h");

}  // namespace

TEST_CASE("a job is named by the launcher's own id, with the variables that give it") {
  struct Case {
    Environment environment;
    const char* job;
    bool one_starter;
    const char* rank_variable;
  };
  const std::vector<Case> cases{
      {step, "SLURM_JOB_ID.SLURM_STEP_ID=262.0", true, "SLURM_PROCID"},
      {joined(mpirun, {{"PMIX_NAMESPACE", "prterun-vm-12345@1"}, {"OMPI_MCA_orte_hnp_uri", "65536.0;tcp://a:1"}}),
       "PMIX_NAMESPACE=prterun-vm-12345@1", true, "OMPI_COMM_WORLD_RANK"},
      {joined(mpirun, {{"OMPI_MCA_orte_hnp_uri", "65536.0;tcp://a:1"}}), "mpirun=65536", true, "OMPI_COMM_WORLD_RANK"},
      {variables("FLUX_TASK_RANK=1 FLUX_JOB_SIZE=4 FLUX_JOB_ID=f2 MASTER_ADDR=h"), "FLUX_JOB_ID=f2", true,
       "FLUX_TASK_RANK"},
      {variables("JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=4 PMIX_NAMESPACE=1 MASTER_ADDR=h"), "PMIX_NAMESPACE=1", false,
       "JSM_NAMESPACE_RANK"},
      {variables("PMI_RANK=1 PMI_SIZE=4 PALS_APID=a-b-c MASTER_ADDR=h"), "PALS_APID=a-b-c", true, "PMI_RANK"},
      {variables("HOROVOD_RANK=1 HOROVOD_SIZE=4 HOROVOD_GLOO_RENDEZVOUS_ADDR=192.0.2.1 "
                 "HOROVOD_GLOO_RENDEZVOUS_PORT=4000 MASTER_ADDR=h"),
       "HOROVOD_GLOO_RENDEZVOUS_ADDR.HOROVOD_GLOO_RENDEZVOUS_PORT=192.0.2.1.4000", false, "HOROVOD_RANK"},
      {joined(by_hand, variables("TORCHELASTIC_RUN_ID=run-7")), "run-7", true, "RANK"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.job);
    const ProcessIdentity who = process_identity(each.environment);
    CHECK(who.job == each.job);
    CHECK(who.is_exact_job);
    CHECK(who.one_starter == each.one_starter);
    CHECK(who.rank_variable == each.rank_variable);
    const ProcessIdentity named = process_identity(joined(each.environment, variables("DTRAIN_JOB_ID=monday")));
    CHECK(named.job == "DTRAIN_JOB_ID=monday");
    CHECK(named.is_exact_job);
  }
}

TEST_CASE("all parts of a heterogeneous Slurm job have the name of the first") {
  const Environment first = joined(step, variables("SLURM_JOB_ID_HET_GROUP_0=262 SLURM_JOB_ID_HET_GROUP_1=263"));
  Environment second = first;
  second["SLURM_JOB_ID"] = "263";
  CHECK(process_identity(first).job == process_identity(second).job);
  CHECK(process_identity(first).job == "SLURM_JOB_ID_HET_GROUP_0.SLURM_STEP_ID=262.0");
}

TEST_CASE("a batch system's job may hold several launches: its name is not exact") {
  const ProcessIdentity who =
      process_identity(variables("MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=4 LSB_JOBID=77 MASTER_ADDR=h"));
  CHECK(who.job == "LSB_JOBID=77");
  CHECK_FALSE(who.is_exact_job);
  CHECK(who.one_starter);
  const ProcessIdentity hydra = process_identity(variables("PMI_RANK=1 PMI_SIZE=4 SLURM_JOB_ID=5 MASTER_ADDR=h"));
  CHECK(hydra.job == "SLURM_JOB_ID=5");
  CHECK_FALSE(hydra.is_exact_job);
}

TEST_CASE("ranks by hand have no name, and may have several parents; a torchrun without a name has one") {
  const ProcessIdentity hand = process_identity(joined(by_hand, variables("SLURM_JOB_ID=5 PMIX_NAMESPACE=s")));
  CHECK_FALSE(hand.job);
  CHECK_FALSE(hand.one_starter);
  CHECK(hand.rank_variable == "RANK");
  const ProcessIdentity torchrun = process_identity(joined(by_hand, variables("TORCHELASTIC_RUN_ID=none")));
  CHECK_FALSE(torchrun.is_exact_job);
  CHECK(torchrun.one_starter);
}

TEST_CASE("RANK and WORLD_SIZE that repeat what a launcher says have that launcher's name") {
  CHECK(process_identity(joined(by_hand, step)).job == "SLURM_JOB_ID.SLURM_STEP_ID=262.0");
  CHECK(process_identity(joined(by_hand, joined(mpirun, variables("PMIX_NAMESPACE=9")))).job == "PMIX_NAMESPACE=9");
  const ProcessIdentity hydra = process_identity(joined(by_hand, variables("PMI_RANK=1 PMI_SIZE=4")));
  CHECK(hydra.launcher == "torch");
  CHECK(hydra.rank_variable == "PMI_RANK");
  CHECK(hydra.one_starter);
}
