#include "unit/rendezvous/prelude.hpp"

using Relation = JobComparison::Relation;

namespace {

/// A rank that a launcher without a name of its own started on host h.
JobMember member(int rank, std::int64_t starter, bool one_starter = true) {
  JobMember made;
  made.description = "rank " + std::to_string(rank) + " on host h (process " + std::to_string(10 + rank) + ")";
  made.host_id = "h";
  made.origin.one_starter = one_starter;
  made.origin.process_space = 1;
  made.origin.starter = starter;
  made.origin.starter_began = 1000;
  made.origin.starter_name = one_starter ? "hydra_pmi_proxy" : "bash";
  made.origin.program = "train";
  made.origin.build = "build id ab";
  return made;
}

JobMember named(int rank, const std::string& job) {
  JobMember made = member(rank, rank);
  made.job = job;
  made.origin.is_exact_job = !job.empty();
  return made;
}

}  // namespace

TEST_CASE("two names are two jobs, with both values and the remedy") {
  const JobComparison compared =
      compare_jobs(named(1, "SLURM_JOB_ID.SLURM_STEP_ID=262.0"), named(0, "SLURM_JOB_ID.SLURM_STEP_ID=5.1"));
  CHECK(compared.relation == Relation::other);
  CHECK(compared.sentence ==
        "rank 1 on host h (process 11) belongs to the job 'SLURM_JOB_ID.SLURM_STEP_ID=262.0', and this is the store of "
        "'SLURM_JOB_ID.SLURM_STEP_ID=5.1', which rank 0 on host h (process 10) opened; give each job a port "
        "(MASTER_PORT), a DTRAIN_JOB_ID or a DTRAIN_SECRET of its own");
}

TEST_CASE("one exact name is one job, whatever started its ranks and whatever they run") {
  JobMember other = named(1, "DTRAIN_JOB_ID=monday");
  other.origin.build = "build id cd";
  CHECK(compare_jobs(other, named(0, "DTRAIN_JOB_ID=monday")).relation == Relation::same);
}

TEST_CASE("a name on one side only is two jobs, both ways") {
  const JobComparison to = compare_jobs(named(1, "DTRAIN_JOB_ID=a"), named(0, ""));
  CHECK(to.relation == Relation::other);
  CHECK_CONTAINS(to.sentence, "belongs to the job 'DTRAIN_JOB_ID=a', and this is the store of a job without a name");
  const JobComparison from = compare_jobs(named(1, ""), named(0, "DTRAIN_JOB_ID=a"));
  CHECK(from.relation == Relation::other);
  CHECK_CONTAINS(from.sentence, "belongs to a job without a name, and this is the store of 'DTRAIN_JOB_ID=a'",
                 "start all ranks of one job with the same name, or give each job a port");
}

TEST_CASE("without a name, the process that starts all ranks of a host decides") {
  CHECK(compare_jobs(member(1, 7), member(0, 7)).relation == Relation::same);
  const JobComparison compared = compare_jobs(member(1, 8), member(0, 7));
  CHECK(compared.relation == Relation::other);
  CHECK(compared.sentence ==
        "rank 1 on host h (process 11) was started by process 8 (hydra_pmi_proxy), and rank 0 on host h (process 10) "
        "by process 7 (hydra_pmi_proxy), so they are of two jobs; give each job a port (MASTER_PORT), a DTRAIN_JOB_ID "
        "or a DTRAIN_SECRET of its own");
  JobMember again = member(1, 7);
  again.origin.starter_began = 2000;  // the process id was given again
  CHECK(compare_jobs(again, member(0, 7)).relation == Relation::other);
  JobMember heterogeneous = member(1, 7);
  heterogeneous.origin.build = "build id cd";
  CHECK(compare_jobs(heterogeneous, member(0, 7)).relation == Relation::same);
}

TEST_CASE("ranks started by hand may have two parents: a doubt that names both") {
  const JobComparison compared = compare_jobs(member(1, 8, false), member(0, 7, false));
  CHECK(compared.relation == Relation::doubtful);
  CHECK(compared.sentence ==
        "rank 1 on host h (process 11) was started by process 8 (bash), and rank 0 on host h (process 10) by process 7 "
        "(bash); where they are of two jobs, give each job a port (MASTER_PORT), a DTRAIN_JOB_ID or a DTRAIN_SECRET of "
        "its own; where they are one job, the same DTRAIN_JOB_ID on all of its ranks says so");
  CHECK(compare_jobs(member(1, 7, false), member(0, 7, false)).relation == Relation::same);
}

TEST_CASE("where no name and no parent says it, two programs are two jobs") {
  for (const bool one_starter : {true, false}) {
    JobMember remote = member(1, 8, one_starter);
    remote.host_id = "other";
    CHECK(compare_jobs(remote, member(0, 7, one_starter)).relation == Relation::same);
    remote.origin.build = "build id cd";
    const JobComparison compared = compare_jobs(remote, member(0, 7, one_starter));
    CHECK(compared.relation == Relation::other);
    CHECK_CONTAINS(compared.sentence,
                   "runs 'train' (build id cd), and rank 0 on host h (process 10) runs 'train' (build id "
                   "ab); where they are one job, give all of its ranks the same DTRAIN_JOB_ID; else give "
                   "each job a port");
    remote.origin.build.clear();  // it could not be read
    CHECK(compare_jobs(remote, member(0, 7, one_starter)).relation == Relation::same);
  }
  JobMember by_hand = member(1, 8, false);
  by_hand.origin.build = "build id cd";
  CHECK(compare_jobs(by_hand, member(0, 7, false)).relation == Relation::other);
}

TEST_CASE("processes of two containers, and what is not known, are not compared") {
  JobMember container = member(1, 8);
  container.origin.process_space = 2;
  CHECK(compare_jobs(container, member(0, 7)).relation == Relation::same);
  JobMember unknown = member(1, 0);
  CHECK(compare_jobs(unknown, member(0, 7)).relation == Relation::same);
  JobMember silent;  // says nothing of itself
  CHECK(compare_jobs(silent, member(0, 7)).relation == Relation::same);
  CHECK(compare_jobs(silent, named(0, "DTRAIN_JOB_ID=a")).relation == Relation::same);
}

TEST_CASE("the name of an allocation, in which several jobs may run, is not enough") {
  JobMember a = member(1, 8);
  JobMember b = member(0, 7);
  a.job = b.job = "LSB_JOBID=4";
  CHECK(compare_jobs(a, b).relation == Relation::other);
  a.origin.starter = 7;
  CHECK(compare_jobs(a, b).relation == Relation::same);
  a.job = "LSB_JOBID=5";
  CHECK(compare_jobs(a, b).relation == Relation::other);
  a.job.clear();  // a host to which the variable was not passed on
  CHECK(compare_jobs(a, b).relation == Relation::same);
}
