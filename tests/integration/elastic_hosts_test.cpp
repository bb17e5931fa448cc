// ctest: TIMEOUT 180 RUN_SERIAL ON
// ctest: LABELS no-tsan
// Elastic jobs over Gloo on two virtual hosts: workers, launchers, a link and a host are lost, and come back. (Gloo's
// library is not instrumented.)
//   DTRAIN_TEST_FROZEN_SECONDS=20 integration --source-file='*/elastic_hosts_test.cpp'    for how long a host is frozen

#include "support/elastic_hosts.hpp"

#include "integration/prelude.hpp"
#include "support/elastic_output.hpp"
#include "support/virtual_cluster.hpp"

using support::VirtualCluster;

namespace {

/// A training with workers on each of two hosts, which ends when end() was called.
class HostsJob {
 public:
  /// @param further arguments of the program @param workers on each host
  explicit HostsJob(const VirtualCluster& cluster, std::vector<std::string> further = {}, int workers = 2,
                    const std::string& timeout_seconds = "20")
      : hosts(cluster, arguments(std::move(further), workers), "1", timeout_seconds) {}

  /// Waits until so many ranks commit a step in a later attempt than that of the last call.
  bool trains_with(int ranks) {
    const dtrain::Deadline deadline = support::soon(std::chrono::seconds(30));
    for (;;) {
      if (const int later = support::later_attempt(hosts.output(0), attempt_, ranks)) {
        attempt_ = later;
        return true;
      }
      if (deadline.passed()) return false;
      hosts.read(std::chrono::milliseconds(2));
    }
  }

  void end() { std::ofstream(end_file_.path) << "end"; }

 private:
  std::vector<std::string> arguments(std::vector<std::string> further, int workers) const {
    further.insert(further.end(), {"--nproc-per-node=" + std::to_string(workers), "--max-restarts=5", "steps=1000000",
                                   "until=" + end_file_.path});
    return further;
  }

  support::TemporaryFile end_file_;
  int attempt_ = 0;  ///< the last one that was waited for

 public:
  support::ElasticHosts hosts;
};

/// Both launchers end with 0, and the ranks have trained as support::check_finished_training() says.
void check_finished(HostsJob& job, int ranks = 4) {
  job.end();
  const std::vector<Result> results = job.hosts.results();
  std::string output;
  for (const Result& each : results) {
    CHECK_MESSAGE(each.exit_code == 0, each.error);
    output += each.output;
  }
  support::check_finished_training(output, ranks);
}

/// Says why where there is none, or no Gloo.
bool can_run(const VirtualCluster& cluster) {
  return dtrain_test::needs(cluster.problem.empty(), cluster.problem) &&
         dtrain_test::needs(!contains(support::run(DTRAIN_TEST_PROGRAMS_DIR "/gloo_probe", {"--help-launch"}).output,
                                      "built without Gloo"),
                            "no Gloo was found when the programs were built (libgloo-dev)");
}

/// Calls `test(job, cluster)` for a job whose four ranks train, where there are virtual hosts. @param further arguments
/// of the program
void on_training_hosts(const std::function<void(HostsJob&, const VirtualCluster&)>& test,
                       std::vector<std::string> further = {}) {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  HostsJob job(cluster, std::move(further));
  REQUIRE(job.trains_with(4));
  test(job, cluster);
}

}  // namespace

TEST_CASE("two nodes train, and a worker of the other node that is killed is replaced there") {
  on_training_hosts([](HostsJob& job, const VirtualCluster&) {
    const std::vector<pid_t> workers = job.hosts.processes(1, false);
    REQUIRE(workers.size() == 2);
    ::kill(workers[0], SIGKILL);
    CHECK(job.trains_with(4));  // maybe after an attempt of 3
    CHECK(job.hosts.launcher(1).wait_for("was lost: killed by signal 9 (SIGKILL); another one starts in its place"));
    check_finished(job);
  });
}

TEST_CASE("the others go on without a node that is lost as a whole, and take in one that comes later") {
  on_training_hosts([](HostsJob& job, const VirtualCluster&) {
    support::signal_all(job.hosts.processes(1, true), SIGKILL);
    CHECK(job.trains_with(2));
    job.hosts.start(1, "7");
    CHECK(job.trains_with(4));
    check_finished(job);
  });
}

TEST_CASE("a host whose link is cut is left out, and comes back when the link does") {
  on_training_hosts([](HostsJob& job, const VirtualCluster& cluster) {
    cluster.cut(1);
    CHECK(job.trains_with(2));
    cluster.mend(1);
    CHECK(job.trains_with(4));
    check_finished(job);
  });
}

TEST_CASE("a host that is frozen for longer than the liveness time is left out, and comes back as a newcomer") {
  on_training_hosts([](HostsJob& job, const VirtualCluster&) {
    const std::vector<pid_t> frozen = job.hosts.processes(1, true);
    REQUIRE(frozen.size() == 3);
    support::signal_all(frozen, SIGSTOP);
    CHECK(job.trains_with(2));
    const char* const seconds = std::getenv("DTRAIN_TEST_FROZEN_SECONDS");
    std::this_thread::sleep_for(std::chrono::seconds(seconds == nullptr ? 1 : std::atoi(seconds)));
    support::signal_all(frozen, SIGCONT);
    CHECK(job.trains_with(4));
    CHECK(job.hosts.processes(1, true) == frozen);
    check_finished(job);
  });
}

TEST_CASE("another node's launcher kills a worker that hangs, once another of its workers has finished the job") {
  on_training_hosts([](HostsJob& job, const VirtualCluster&) {
    const std::vector<pid_t> workers = job.hosts.processes(1, false);
    REQUIRE(workers.size() == 2);
    ::kill(workers[0], SIGSTOP);
    CHECK(job.trains_with(3));
    job.end();
    for (const Result& each : job.hosts.results()) {
      CHECK_MESSAGE(each.exit_code == 0, each.error);
    }
  });
}

TEST_CASE("the launcher of a node whose only worker hangs ends some time after the job's store has") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  HostsJob job(cluster, {}, 1, "5");
  REQUIRE(job.trains_with(2));
  support::signal_all(job.hosts.processes(1, false), SIGSTOP);
  CHECK(job.trains_with(1));
  job.end();
  const Result first = job.hosts.launcher(0).wait(support::soon());
  CHECK_MESSAGE(first.exit_code == 0, first.error);
  const Result other = job.hosts.launcher(1).wait(support::soon(std::chrono::seconds(60)));
  support::check_ended(other, 75, {"the store at host0:29500 has not answered for 15 s"});
}

TEST_CASE("two launchers on one host are two nodes") {
  on_training_hosts([](HostsJob& job, const VirtualCluster&) {
    job.hosts.launcher(1).signal(SIGTERM);
    CHECK(job.trains_with(2));
    job.hosts.start(1, "1", 0);
    CHECK(job.trains_with(4));
    const std::vector<pid_t> workers = job.hosts.processes(0, false);
    REQUIRE(workers.size() == 4);
    ::kill(workers.back(), SIGKILL);
    CHECK(job.trains_with(4));
    check_finished(job);
  });
}

TEST_CASE("a worker of another node that ends with exit code 0 before the job's end is replaced") {
  const support::TemporaryFile file;
  on_training_hosts(
      [&](HostsJob& job, const VirtualCluster&) {
        std::ofstream(file.path + ".1") << "leave";
        CHECK(job.hosts.launcher(1).wait_for(
            "was lost: exit code 0 before the job had finished; another one starts in its place"));
        CHECK(job.trains_with(4));
        check_finished(job);
      },
      {"leave=" + file.path});
}

TEST_CASE("the launchers of both nodes end with what the function of a finished job has returned") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  const support::TemporaryDirectory logs;
  support::ElasticHosts hosts(cluster, {"--max-restarts=2", "--log-dir=" + logs.path, "steps=20", "return=3"}, "1");
  for (const Result& each : hosts.results()) {
    CHECK_MESSAGE(each.exit_code == 3, each.error);
    CHECK_MESSAGE(!contains(each.error, "was lost"), each.error);
  }
  int folders = 0;  // one for each host
  for (const auto& folder : std::filesystem::directory_iterator(logs.path)) {
    CHECK(std::filesystem::exists(folder.path() / "rank-0.stdout"));
    ++folders;
  }
  CHECK(folders == 2);
}

TEST_CASE("SIGTERM to the launcher of another node ends its workers alone") {
  on_training_hosts([](HostsJob& job, const VirtualCluster&) {
    job.hosts.launcher(1).signal(SIGTERM);
    CHECK(job.hosts.launcher(1).wait(support::soon()).exit_code == 143);
    CHECK(job.trains_with(2));
    job.end();
    const Result first = job.hosts.launcher(0).wait(support::soon());
    CHECK_MESSAGE(first.exit_code == 0, first.error);
  });
}

TEST_CASE("the launcher of node 0 ends a job whose workers never announce themselves") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  support::ElasticHosts hosts(cluster, {"hang"}, "1", "2");
  const Result first = hosts.launcher(0).wait(support::soon());
  support::check_ended(first, 75,
                       {"no attempt was formed; the job waited for workers: 0 are here, and the job needs 1"});
  hosts.launcher(1).signal(SIGTERM);
  CHECK(hosts.launcher(1).wait(support::soon()).exit_code == 143);
}

TEST_CASE("SIGTERM to the launcher of node 0 ends the job everywhere") {
  on_training_hosts([](HostsJob& job, const VirtualCluster&) {
    job.hosts.launcher(0).signal(SIGTERM);
    const std::vector<Result> results = job.hosts.results();
    CHECK_MESSAGE(results[0].exit_code == 143, results[0].error);
    CHECK_MESSAGE(results[1].exit_code == 75, results[1].error);
    CHECK_CONTAINS(results[1].error, "SIGTERM came to the launcher of node 0");
  });
}
