// ctest: TIMEOUT 180 RUN_SERIAL ON
// ctest: LABELS no-tsan
// Jobs over Gloo on several virtual hosts, each with a network of its own, whose cables can be cut. (Gloo's library is
// not instrumented.)

#include "integration/prelude.hpp"
#include "support/virtual_cluster.hpp"

using support::VirtualCluster;

namespace {

const std::string gloo_probe = DTRAIN_TEST_PROGRAMS_DIR "/gloo_probe";

/// A launcher on each host, which starts as many ranks as `workers` says there.
std::vector<std::unique_ptr<Program>> launched(const VirtualCluster& cluster, const std::vector<int>& workers,
                                               const std::string& what, Program::Variables variables = {}) {
  variables["DTRAIN_SECRET"] = "0123456789abcdef0123456789abcdef";
  variables["DTRAIN_LIVENESS_SECONDS"] = "1";
  std::vector<std::unique_ptr<Program>> programs;
  for (std::size_t host = 0; host < workers.size(); ++host) {
    const std::vector<std::string> arguments{"--nnodes=" + std::to_string(workers.size()),
                                             "--node-rank=" + std::to_string(host),
                                             "--master-addr=host0",
                                             "--master-port=29500",
                                             "--nproc-per-node=" + std::to_string(workers[host]),
                                             what};
    programs.push_back(cluster.start(static_cast<int>(host), gloo_probe, arguments, variables));
  }
  return programs;
}

std::vector<Result> ends_of(const std::vector<std::unique_ptr<Program>>& programs) {
  std::vector<Result> ends;
  for (const std::unique_ptr<Program>& program : programs) {
    program->close_input();
    ends.push_back(program->wait(support::soon(std::chrono::seconds(30))));
  }
  return ends;
}

/// Says why where there is none, or no Gloo.
bool can_run(const VirtualCluster& cluster) {
  return dtrain_test::needs(cluster.problem.empty(), cluster.problem) &&
         dtrain_test::needs(!contains(cluster.run(0, gloo_probe, {"--help-launch"}).output, "built without Gloo"),
                            "no Gloo was found when the programs were built (libgloo-dev)");
}

}  // namespace

TEST_CASE("ranks on several hosts find each other over Gloo, with an interface named and without") {
  for (const std::vector<int>& workers : {std::vector<int>{2, 2}, std::vector<int>{2, 1, 1}}) {
    const VirtualCluster cluster(static_cast<int>(workers.size()));
    if (!can_run(cluster)) return;
    for (const char* interface : {"", "eth0"}) {
      const std::vector<Result> ends = ends_of(launched(cluster, workers, "hello", {{"DTRAIN_INTERFACE", interface}}));
      int rank = 0;
      for (std::size_t host = 0; host < workers.size(); ++host) {
        CAPTURE(ends[host].error);
        CHECK(ends[host].exit_code == 0);
        for (int local = 0; local < workers[host]; ++local, ++rank)
          CHECK_CONTAINS(ends[host].output, "rank " + std::to_string(rank) + " of 4: sum 6, half 2");
      }
    }
  }
}

TEST_CASE("a rank that is killed on one host ends those of the others") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  const std::vector<Result> ends = ends_of(launched(cluster, {1, 1}, "kill"));
  CAPTURE(ends[0].error);
  CHECK(ends[0].exit_code != 0);
  CHECK_CONTAINS(ends[0].error, "rank 0: ends because rank 1 on host host1 was lost: killed by signal 9");
}

TEST_CASE("a cable that is cut in the middle of a step ends every rank in time, and they name the host") {
  const VirtualCluster cluster(3, "1gbit");
  if (!can_run(cluster)) return;
  const std::vector<std::unique_ptr<Program>> programs = launched(cluster, {2, 1, 1}, "endless");
  for (const std::unique_ptr<Program>& program : programs)
    REQUIRE(program->wait_for("phase steady"));
  const support::Stopwatch since_cut;
  cluster.cut(2);
  const std::vector<Result> ends = ends_of(programs);
  for (const std::size_t host : {std::size_t{0}, std::size_t{1}}) {
    CAPTURE(ends[host].error);
    CHECK(ends[host].exit_code == 75);
    CHECK_CONTAINS(ends[host].error, "host2");
  }
  CHECK(since_cut.elapsed() < std::chrono::seconds(20));
}
