// ctest: TIMEOUT 240 RUN_SERIAL ON
// ctest: LABELS long
// Jobs on several hosts: virtual ones, with networks of their own, whose cables can be cut.

#include "integration/prelude.hpp"
#include "support/virtual_cluster.hpp"

using support::VirtualCluster;

namespace {

const std::string training = DTRAIN_TEST_PROGRAMS_DIR "/store_training";
constexpr std::chrono::seconds liveness{1};
constexpr std::chrono::seconds after_liveness{5};

/// A training whose ranks are where `workers` says: host 0's first.
class Job {
 public:
  Job(const VirtualCluster& cluster, std::vector<int> workers) : cluster_(&cluster), workers_(std::move(workers)) {}

  /// A launcher on each host.
  void launch(const std::vector<std::string>& arguments) {
    for (std::size_t host = 0; host < workers_.size(); ++host) {
      std::vector<std::string> all{"--nnodes=" + std::to_string(workers_.size()), "--node-rank=" + std::to_string(host),
                                   "--master-addr=host0", "--master-port=29500",
                                   "--nproc-per-node=" + std::to_string(workers_[host])};
      all.insert(all.end(), arguments.begin(), arguments.end());
      start(host, all, {});
    }
  }

  /// Processes that somebody starts one by one, as torchrun would, with the least that they need to know.
  void launch_plainly(std::vector<std::string> arguments) {
    arguments.push_back("plain");
    int rank = 0;
    for (std::size_t host = 0; host < workers_.size(); ++host) {
      for (int local = 0; local < workers_[host]; ++local, ++rank) {
        start(host, arguments,
              {{"RANK", std::to_string(rank)},
               {"WORLD_SIZE", std::to_string(ranks())},
               {"MASTER_ADDR", "host0"},
               {"MASTER_PORT", "29500"}});
      }
    }
  }

  int ranks() const { return std::accumulate(workers_.begin(), workers_.end(), 0); }

  /// Whether all have taken a few steps together.
  bool is_steady() {
    for (Started& each : programs_) {
      if (!each.program->wait_for("phase steady")) return false;
    }
    return true;
  }

  struct End {
    int host = 0;
    Result result;
  };

  std::vector<End> wait() {
    std::vector<End> ends;
    for (Started& each : programs_) {
      each.program->close_input();
      ends.push_back({each.host, each.program->wait(support::soon(std::chrono::seconds(30)))});
    }
    return ends;
  }

 private:
  struct Started {
    int host = 0;
    std::unique_ptr<Program> program;
  };

  void start(std::size_t host, const std::vector<std::string>& arguments, Program::Variables variables) {
    variables["DTRAIN_SECRET"] = "0123456789abcdef0123456789abcdef";
    variables["DTRAIN_LIVENESS_SECONDS"] = std::to_string(liveness.count());
    const int number = static_cast<int>(host);
    programs_.push_back({number, cluster_->start(number, training, arguments, variables)});
  }

  const VirtualCluster* cluster_;
  std::vector<int> workers_;
  std::vector<Started> programs_;
};

/// What every rank says at the end: each step takes 2^-10 times the mean of rank + 1 from the weight.
void check_trained(const Job& job, const std::vector<Job::End>& ends, const std::vector<int>& workers) {
  std::string output;
  for (const Job::End& end : ends) {
    INFO(end.result.error);
    CAPTURE(end.result.time.count());
    CHECK(end.result.exit_code == 0);
    output += end.result.output;
  }
  char weight[64];
  std::snprintf(weight, sizeof weight, "weight %.17g after 16 steps\n", -16.0 * (job.ranks() + 1) / 2 / 1024);
  int rank = 0;
  for (std::size_t host = 0; host < workers.size(); ++host) {
    for (int local = 0; local < workers[host]; ++local, ++rank) {
      const std::string line = "rank " + std::to_string(rank) + " of " + std::to_string(job.ranks()) + " on node " +
                               std::to_string(host) + " of " + std::to_string(workers.size()) + ": " + weight;
      CAPTURE(line);
      CHECK_CONTAINS(output, line);
    }
  }
}

/// Everything on the other hosts has ended in time with the code of a lost peer, and says which host it was.
void check_lost(const VirtualCluster& cluster, Job& job, int lost, const support::Stopwatch& since_cut) {
  for (const Job::End& end : job.wait()) {
    if (end.host == lost) continue;
    CAPTURE(end.host);
    CAPTURE(end.result.error);
    CHECK(end.result.exit_code == 75);
    CHECK_CONTAINS(end.result.error, VirtualCluster::host(lost));
    CHECK(cluster.processes_of(end.host, "store_training").empty());
  }
  CHECK(since_cut.elapsed() < liveness + after_liveness + two_seconds - std::chrono::seconds(2));
}

const std::vector<std::vector<int>> layouts{{2, 2}, {2, 1, 1}};
const std::vector<std::string> endless{"1000000", "1", "phases"};

}  // namespace

TEST_CASE("ranks on 2 and on 3 virtual hosts train together, and know by themselves which share a host") {
  for (const std::vector<int>& workers : layouts) {
    CAPTURE(workers.size());
    const VirtualCluster cluster(static_cast<int>(workers.size()));
    if (!cluster.problem.empty()) return dtrain_test::skip(cluster.problem);
    for (const bool plainly : {false, true}) {
      CAPTURE(plainly);
      Job job(cluster, workers);
      plainly ? job.launch_plainly({"16"}) : job.launch({"16"});
      const std::vector<Job::End> ends = job.wait();
      check_trained(job, ends, workers);
      CHECK_CONTAINS(ends.front().result.error, "network: eth0 (10.77.0.1), speed unknown\n");
    }
  }
}

TEST_CASE("shared memory refuses ranks on two hosts, and says what to use there") {
  const VirtualCluster cluster(2);
  if (!cluster.problem.empty()) return dtrain_test::skip(cluster.problem);
  Job job(cluster, {1, 1});
  job.launch({"16", "shared"});
  for (const Job::End& end : job.wait()) {
    CAPTURE(end.result.error);
    CHECK(end.result.exit_code != 0);
    CHECK_CONTAINS(
        end.result.error,
        "backend::SharedMemory joins the ranks of one host, and this job has 2 nodes (from --nnodes='2'); if "
        "all is one host, start one launcher there, with --nnodes=1 and all workers (--nproc-per-node); for "
        "several hosts, use backend::Gloo or backend::Nccl");
  }
}

TEST_CASE("a cut link ends every rank elsewhere within the liveness time and 5 s, and names the lost host") {
  const VirtualCluster cluster(3);
  if (!cluster.problem.empty()) return dtrain_test::skip(cluster.problem);
  for (const int lost : {2, 0}) {  // a host like any other; the one that has the job's store
    for (const bool plainly : {false, true}) {
      CAPTURE(lost);
      CAPTURE(plainly);
      Job job(cluster, {2, 1, 1});
      plainly ? job.launch_plainly(endless) : job.launch(endless);
      REQUIRE(job.is_steady());
      cluster.cut(lost);
      check_lost(cluster, job, lost, support::Stopwatch());
      cluster.mend(lost);
    }
  }
}

TEST_CASE("a process that is killed on one host ends those of the others within two seconds") {
  const VirtualCluster cluster(2);
  if (!cluster.problem.empty()) return dtrain_test::skip(cluster.problem);
  for (const bool plainly : {false, true}) {
    CAPTURE(plainly);
    Job job(cluster, {2, 2});
    plainly ? job.launch_plainly(endless) : job.launch(endless);
    REQUIRE(job.is_steady());
    const std::vector<pid_t> there = cluster.processes_of(1, "store_training");
    REQUIRE(there.size() == (plainly ? 2 : 3));
    REQUIRE(::kill(there.back(), SIGKILL) == 0);  // a rank: launchers start before their workers
    const support::Stopwatch since_killed;
    int killed_ones = 0;
    for (const Job::End& end : job.wait()) {
      CAPTURE(end.result.error);
      const bool is_killed = end.result.exit_code == 137;  // a launcher has its first failed worker's code
      killed_ones += is_killed ? 1 : 0;
      CHECK((is_killed || (plainly && end.result.exit_code == 75)));
      CHECK((contains(end.result.error, "host1") || (plainly && is_killed)));
    }
    CHECK(killed_ones == (plainly ? 1 : 2));
    CHECK(since_killed.elapsed() < two_seconds);
  }
}

TEST_CASE("virtual hosts end with all that runs on them when their cluster is killed, and its folder is swept") {
  VirtualCluster cluster(2);
  if (!cluster.problem.empty()) return dtrain_test::skip(cluster.problem);
  const std::string mark = support::new_mark();
  const auto guest = cluster.start(1, "/bin/sh", {"-c", "setsid sleep 1000 & echo up; wait; true " + mark});
  REQUIRE(guest->wait_for("up\n"));
  REQUIRE(!cluster.processes_of(1, mark).empty());
  cluster.kill();
  guest->close_input();
  CHECK(guest->wait().exit_code == 255);
  const dtrain::Deadline deadline = support::soon();
  while (!cluster.processes_of(1, "").empty() && !deadline.passed())
    ::usleep(5000);
  CHECK(cluster.processes_of(1, "").empty());  // and with the last process go the network and its link
  CHECK(support::run(VirtualCluster::python(), {"-B", VirtualCluster::script(), "sweep"}).exit_code == 0);
  CHECK(::access(cluster.name().c_str(), F_OK) != 0);
}
