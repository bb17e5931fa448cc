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

/// Drops at a host what `rules` of nftables' input hook say, from now on.
bool can_drop(const VirtualCluster& cluster, int host, const std::string& rules) {
  const std::string table = "table inet test { chain in { type filter hook input priority 0; " + rules + " }; }";
  const Result result = cluster.run(host, "nft", {table});
  return dtrain_test::needs(result.exit_code == 0, "nftables does not work here: " + result.error);
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

TEST_CASE("where a firewall lets only the store's port through, the error names who cannot reach whom, and where") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  for (const int host : {0, 1}) {
    if (!can_drop(cluster, host, "iif lo accept; ct state established,related accept; tcp dport 29500 accept; drop;"))
      return;
  }
  const auto unconnected = [](int rank, int peer) {
    return "rank " + std::to_string(rank) + " on host " + VirtualCluster::host(rank) + " has not connected with rank " +
           std::to_string(peer) + " on host " + VirtualCluster::host(peer) + " at " + VirtualCluster::address(peer) +
           ":";
  };
  for (const Result& end :
       ends_of(launched(cluster, {1, 1}, "hello", {{"DTRAIN_TIMEOUT_SECONDS", "3"}}))) {  // of the first to time out
    CAPTURE(end.error);
    CHECK((contains(end.error, unconnected(0, 1)) || contains(end.error, unconnected(1, 0))));
    CHECK_CONTAINS(end.error,
                   " (any port: Gloo listens at one for each pair; does a firewall let the hosts reach each other at "
                   "all ports?)");
  }
}

TEST_CASE("where the network loses the data of a collective and not the store's, the error says that all called it") {
  const VirtualCluster cluster(2);
  if (!can_run(cluster)) return;
  const std::vector<std::unique_ptr<Program>> programs =
      launched(cluster, {1, 1}, "endless", {{"DTRAIN_TIMEOUT_SECONDS", "6"}});
  for (const std::unique_ptr<Program>& program : programs)
    REQUIRE(program->wait_for("phase steady"));
  if (!can_drop(cluster, 1, "tcp sport 29500 accept; meta l4proto tcp drop;")) return;
  const std::vector<Result> ends = ends_of(programs);
  CAPTURE(ends[0].error);
  CAPTURE(ends[1].error);
  CHECK_CONTAINS(ends[0].error,
                 "ranks 0 and 1 have both called it, and data does not get through between host host0 (10.77.0.1) and "
                 "host host1 (10.77.0.2) although the store's connection lives: see the MTU (ping -M do -s 8972)");
}

TEST_CASE("ranks of a host that has only IPv6's loopback address train there") {
  const VirtualCluster cluster(1);
  if (!can_run(cluster)) return;
  const bool has_v6 = contains(cluster.run(0, "ip", {"address", "show", "dev", "lo"}).output, "::1/128");
  if (!dtrain_test::needs(has_v6, "this machine has no IPv6")) return;
  REQUIRE(cluster.run(0, "ip", {"address", "delete", "127.0.0.1/8", "dev", "lo"}).exit_code == 0);
  const Result end = cluster.run(0, gloo_probe, {"--nproc-per-node=2", "hello"});
  CAPTURE(end.error);
  CHECK(end.exit_code == 0);
  CHECK_CONTAINS(end.output, "rank 1 of 2: sum 1, half 1");
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
