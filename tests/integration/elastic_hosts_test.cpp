// ctest: TIMEOUT 180 RUN_SERIAL ON
// ctest: LABELS no-tsan
// Elastic jobs over Gloo on two virtual hosts: workers, launchers, a link and a host are lost, and come back. (Gloo's
// library is not instrumented.)
//   DTRAIN_FROZEN_SECONDS=20 integration_elastic_hosts    for how long a host is frozen

#include <map>
#include <regex>

#include "integration/prelude.hpp"
#include "support/leftovers.hpp"
#include "support/virtual_cluster.hpp"

using support::VirtualCluster;

namespace {

const std::string training = DTRAIN_TEST_PROGRAMS_DIR "/elastic_training";

/// A training with two workers on each of two hosts, which ends when end() was called.
class HostsJob {
 public:
  explicit HostsJob(const VirtualCluster& cluster) : cluster_(cluster) {
    for (const int node : {0, 1}) {
      start(node);
    }
  }

  /// Starts a launcher on the node's host, with that number as its rank; an earlier one's results are dropped.
  void start(int node, const std::string& rank = "") {
    const std::vector<std::string> arguments{"--nnodes=1:2",
                                             "--node-rank=" + (rank.empty() ? std::to_string(node) : rank),
                                             "--master-addr=host0",
                                             "--master-port=29500",
                                             "--nproc-per-node=2",
                                             "--max-restarts=5",
                                             "steps=1000000",
                                             "until=" + end_file_.path,
                                             "log",
                                             "gloo"};
    auto& launcher = launchers_[static_cast<std::size_t>(node)];
    launcher = cluster_.start(node, training, arguments,
                              {{"DTRAIN_SECRET", "0123456789abcdef0123456789abcdef"},
                               {"DTRAIN_LIVENESS_SECONDS", "1"},
                               {"DTRAIN_TIMEOUT_SECONDS", "20"}});
    launcher->close_input();
  }

  /// Waits until so many ranks commit a step in a later attempt than that of the last call.
  bool trains_with(int ranks) {
    const dtrain::Deadline deadline = support::soon(std::chrono::seconds(30));
    const std::string end = " size " + std::to_string(ranks) + " digest";
    for (int next = attempt_;;) {
      next = next < attempt_ + 10 ? next + 1 : attempt_ + 1;
      if (contains(first().output(), " attempt " + std::to_string(next) + end)) {
        attempt_ = next;
        return true;
      }
      if (deadline.passed()) return false;
      // No line has this text: the call reads what has been written.
      static_cast<void>(first().wait_for("\n\n", dtrain::Deadline::after(std::chrono::milliseconds(2))));
    }
  }

  /// The processes of node 1: launcher and workers, or the workers alone.
  std::vector<pid_t> second_node(bool with_launcher) const {
    std::vector<pid_t> found = cluster_.processes_of(1, training);
    std::erase_if(found, [&](pid_t process) {
      const std::string environment = support::environment_of(process);
      const bool is_worker = environment.find("DTRAIN_LAUNCHER_PROCESS=") != std::string::npos;
      return !is_worker &&
             !(with_launcher && contains(content("/proc/" + std::to_string(process) + "/cmdline"), "--nnodes"));
    });
    return found;
  }

  void end() { std::ofstream(end_file_.path) << "end"; }

  /// The ends of both launchers.
  std::vector<Result> results() {
    std::vector<Result> found;
    for (const auto& launcher : launchers_) {
      found.push_back(launcher->wait(support::soon(std::chrono::seconds(30))));
    }
    return found;
  }

  Program& first() { return *launchers_[0]; }
  Program& second() { return *launchers_[1]; }

 private:
  const VirtualCluster& cluster_;
  support::TemporaryFile end_file_;
  int attempt_ = 0;  ///< the last one that was waited for
  std::vector<std::unique_ptr<Program>> launchers_{2};
};

/// Both launchers end with 0, four ranks finish with the same weights, and no two ranks of an attempt have committed
/// different weights at a step; no step is left out.
void check_finished(HostsJob& job, int ranks = 4) {
  job.end();
  const std::vector<Result> results = job.results();
  std::string output;
  for (const Result& each : results) {
    CHECK_MESSAGE(each.exit_code == 0, each.error);
    output += each.output;
  }
  const std::regex end("finished as rank \\d+ of (\\d+): (\\w+ after \\d+) steps");
  std::multiset<std::string> ends;
  for (std::sregex_iterator i(output.begin(), output.end(), end), none; i != none; ++i) {
    CHECK((*i)[1].str() == std::to_string(ranks));
    ends.insert((*i)[2].str());
  }
  CHECK_MESSAGE(ends.size() == static_cast<std::size_t>(ranks), output);
  CHECK(std::set<std::string>(ends.begin(), ends.end()).size() == 1);
  std::map<std::pair<int, int>, std::set<std::string>> digests;  // by attempt and step
  std::set<int> steps;
  const std::regex line("commit (\\d+) attempt (\\d+) size \\d+ digest (\\w+)\n");
  for (std::sregex_iterator i(output.begin(), output.end(), line), none; i != none; ++i) {
    steps.insert(std::stoi((*i)[1].str()));
    digests[{std::stoi((*i)[2].str()), std::stoi((*i)[1].str())}].insert((*i)[3].str());
  }
  REQUIRE(!steps.empty());
  CHECK(steps.size() == static_cast<std::size_t>(*steps.rbegin()));
  for (const auto& each : digests) {
    CHECK_MESSAGE(each.second.size() == 1, "attempt " << each.first.first << ", step " << each.first.second);
  }
}

/// Says why where there is none, or no Gloo.
bool can_run(const VirtualCluster& cluster) {
  if (!cluster.problem.empty()) {
    dtrain_test::skip(cluster.problem);
    return false;
  }
  if (contains(support::run(training, {"gloo", "--help-launch"}).output, "built without Gloo")) {
    dtrain_test::skip("no Gloo was found when the programs were built (libgloo-dev)");
    return false;
  }
  return true;
}

void signal_all(const std::vector<pid_t>& processes, int signal) {
  for (const pid_t each : processes) {
    ::kill(each, signal);
  }
}

}  // namespace

TEST_CASE("two nodes train, and a worker of the other node that is killed is replaced there") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  HostsJob job(cluster);
  REQUIRE(job.trains_with(4));
  const std::vector<pid_t> workers = job.second_node(false);
  REQUIRE(workers.size() == 2);
  ::kill(workers[0], SIGKILL);
  CHECK(job.trains_with(4));  // maybe after an attempt of 3
  CHECK(job.second().wait_for("was lost: killed by signal 9 (SIGKILL); another one starts in its place"));
  check_finished(job);
}

TEST_CASE("the others go on without a node that is lost as a whole, and take in one that comes later") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  HostsJob job(cluster);
  REQUIRE(job.trains_with(4));
  signal_all(job.second_node(true), SIGKILL);
  CHECK(job.trains_with(2));
  job.start(1, "7");
  CHECK(job.trains_with(4));
  check_finished(job);
}

TEST_CASE("a host whose link is cut is left out, and comes back when the link does") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  HostsJob job(cluster);
  REQUIRE(job.trains_with(4));
  cluster.cut(1);
  CHECK(job.trains_with(2));
  cluster.mend(1);
  CHECK(job.trains_with(4));
  check_finished(job);
}

TEST_CASE("a host that is frozen for longer than the liveness time is left out, and comes back as a newcomer") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  HostsJob job(cluster);
  REQUIRE(job.trains_with(4));
  const std::vector<pid_t> frozen = job.second_node(true);
  REQUIRE(frozen.size() == 3);
  signal_all(frozen, SIGSTOP);
  CHECK(job.trains_with(2));
  const char* const seconds = std::getenv("DTRAIN_FROZEN_SECONDS");
  std::this_thread::sleep_for(std::chrono::seconds(seconds == nullptr ? 1 : std::atoi(seconds)));
  signal_all(frozen, SIGCONT);
  CHECK(job.trains_with(4));
  CHECK(job.second_node(true) == frozen);
  check_finished(job);
}

TEST_CASE("SIGTERM to the launcher of another node ends its workers alone") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  HostsJob job(cluster);
  REQUIRE(job.trains_with(4));
  job.second().signal(SIGTERM);
  CHECK(job.second().wait(support::soon()).exit_code == 143);
  CHECK(job.trains_with(2));
  job.end();
  const Result first = job.first().wait(support::soon());
  CHECK_MESSAGE(first.exit_code == 0, first.error);
}

TEST_CASE("SIGTERM to the launcher of node 0 ends the job everywhere") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  HostsJob job(cluster);
  REQUIRE(job.trains_with(4));
  job.first().signal(SIGTERM);
  const std::vector<Result> results = job.results();
  CHECK_MESSAGE(results[0].exit_code == 143, results[0].error);
  CHECK_MESSAGE(results[1].exit_code == 75, results[1].error);
  CHECK_CONTAINS(results[1].error, "SIGTERM came to the launcher of node 0");
}
