// ctest: TIMEOUT 180 RUN_SERIAL ON
// ctest: LABELS no-tsan
// An elastic job over Gloo under a real Slurm, whose nodes are virtual hosts: a task is killed, a node crashes, and
// another node comes. (Gloo's library is not instrumented.)

#include "integration/prelude.hpp"
#include "support/elastic_output.hpp"
#include "support/slurm_on_hosts.hpp"
#include "support/virtual_cluster.hpp"

namespace {

constexpr int hosts = 4;

/// Job steps of elastic_training as the guide starts them, with one worker for each task.
class SlurmJob {
 public:
  explicit SlurmJob(const support::SlurmOnHosts& slurm) : slurm_(slurm) {}

  /// Starts a task on each of the nodes. A task says at its end with which exit code its launcher has ended.
  /// @param start further arguments of srun @param arguments further ones of the program
  std::unique_ptr<Program> start(std::vector<std::string> start, const std::vector<std::string>& arguments) const {
    const std::vector<std::string> all{"--kill-on-bad-exit=0",
                                       "--no-kill",
                                       "--wait=0",
                                       "--ntasks-per-node=1",
                                       "sh",
                                       "-c",
                                       R"("$0" "$@"; code=$?; echo "$SLURMD_NODENAME ends with $code"; exit $code)",
                                       DTRAIN_TEST_PROGRAMS_DIR "/elastic_training",
                                       "--nproc-per-node=1",
                                       "--nnodes=1:3",
                                       "--master-port=29500",
                                       "log",
                                       "gloo",
                                       "steps=1000000",
                                       "until=" + end_.path,
                                       mark};
    start.insert(start.end(), all.begin(), all.end());
    start.insert(start.end(), arguments.begin(), arguments.end());
    return slurm_.srun(start, {{"DTRAIN_SECRET", "0123456789abcdef0123456789abcdef"},
                               {"DTRAIN_LIVENESS_SECONDS", "1"},
                               {"DTRAIN_TIMEOUT_SECONDS", "20"}});
  }

  /// Waits until so many ranks commit a step in a later attempt than that of the last call.
  bool trains_with(int ranks, Program& step) {
    const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60));
    for (;;) {
      if (const int later = support::later_attempt(step.output(), attempt_, ranks)) {
        attempt_ = later;
        return true;
      }
      if (deadline.passed()) return false;
      static_cast<void>(step.wait_for("\n\n", dtrain::Deadline::after(std::chrono::milliseconds(10))));  // reads
    }
  }

  void end() const { std::ofstream(end_.path) << "end"; }

  const std::string mark = new_mark();

 private:
  const support::SlurmOnHosts& slurm_;
  const support::TemporaryFile end_;
  int attempt_ = 0;  ///< the last one that was waited for
};

}  // namespace

TEST_CASE("an elastic job under Slurm goes on without a task and a node that it loses, and takes in another node") {
  if (contains(support::run(DTRAIN_TEST_PROGRAMS_DIR "/gloo_probe", {"--help-launch"}).output, "built without Gloo")) {
    return dtrain_test::skip("no Gloo was found when the programs were built (libgloo-dev)");
  }
  const support::VirtualCluster cluster(hosts);
  const support::SlurmOnHosts slurm(cluster, hosts);
  if (!slurm.problem.empty()) return dtrain_test::skip(slurm.problem);
  SlurmJob job(slurm);
  const std::unique_ptr<Program> first = job.start({"--nodelist=host0,host1,host2", "--nodes=3"}, {});
  REQUIRE_MESSAGE(job.trains_with(3, *first), first->wait(support::soon(std::chrono::seconds(0))).error);
  for (const pid_t process : cluster.processes_of(2, job.mark)) {
    ::kill(process, SIGKILL);
  }
  CHECK(job.trains_with(2, *first));
  REQUIRE(slurm.crash(1, job.mark));
  CHECK(job.trains_with(1, *first));
  const std::unique_ptr<Program> further =
      job.start({"--nodelist=host3", "--nodes=1"}, {"--node-rank=1", "--master-addr=host0"});
  CHECK(job.trains_with(2, *first));
  job.end();
  const Result result = first->wait(support::soon(std::chrono::seconds(60)));
  CHECK_MESSAGE(contains(result.output, "host0 ends with 0"), result.error);
  CHECK_MESSAGE(result.exit_code != 0, "srun ends with the worst exit code of a step's tasks");
  const Result of_further = further->wait();
  CHECK_MESSAGE(of_further.exit_code == 0, of_further.error);
  support::check_finished_training(result.output + of_further.output, 2);
}
