// ctest: TIMEOUT 240 RUN_SERIAL ON
// Where the store of a job on several hosts listens, if the hosts' files of names differ. Nothing has a secret here.

#include "integration/prelude.hpp"
#include "support/virtual_cluster.hpp"

using support::VirtualCluster;

namespace {

const std::string training = DTRAIN_TEST_PROGRAMS_DIR "/store_training";

/// host0, on which rank 0 runs, and host1, on which rank 1 does; MASTER_ADDR is node-a.
class TwoHosts {
 public:
  /// @param hosts lines of /etc/hosts of each
  explicit TwoHosts(const std::vector<std::string>& hosts) : cluster_(2) {
    if (!cluster_.problem.empty()) {
      dtrain_test::skip(cluster_.problem);
      return;
    }
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const std::string file = folder_.path + "/hosts-" + std::to_string(i);
      std::ofstream(file) << "127.0.0.1 localhost\n" << hosts[i];
      REQUIRE(on_host(static_cast<int>(i), "mount --bind " + file + " /etc/hosts").exit_code == 0);
    }
    is_there = true;
  }

  Result on_host(int host, const std::string& script) const { return cluster_.run(host, "/bin/sh", {"-c", script}); }

  std::unique_ptr<Program> start(int rank, const Program::Variables& more = {}) const {
    Program::Variables variables{{"RANK", std::to_string(rank)},
                                 {"WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", "node-a"},
                                 {"MASTER_PORT", "29500"},
                                 {"DTRAIN_TIMEOUT_SECONDS", "20"}};
    for (const auto& [name, value] : more)
      variables[name] = value;
    std::unique_ptr<Program> program = cluster_.start(rank, training, {"plain"}, variables);
    program->close_input();
    return program;
  }

  void check_trains(const Program::Variables& of_rank_0 = {}) const {
    const std::unique_ptr<Program> ranks[] = {start(0, of_rank_0), start(1)};
    for (const auto& rank : ranks) {
      const Result result = rank->wait(support::soon(std::chrono::seconds(40)));
      INFO(result.error);
      CHECK(result.exit_code == 0);
      CHECK(contains(result.output, " of 2: weight -0.0146484375 after 10 steps\n"));  // 10 x 1.5 / 1024
      CHECK(!contains(result.error, "does not listen"));
    }
  }

  bool is_there = false;

 private:
  support::TemporaryDirectory folder_;
  VirtualCluster cluster_;
};

}  // namespace

TEST_CASE("a store listens at both addresses of a name with two, of which another host knows one") {
  const TwoHosts hosts({"fd77::1 node-a\n10.77.0.1 node-a\n", "10.77.0.1 node-a\n"});
  if (!hosts.is_there) return;
  if (hosts.on_host(0, "ip -6 address add fd77::1/64 dev eth0 nodad").exit_code != 0) {
    return dtrain_test::skip("this kernel has no IPv6");
  }
  hosts.check_trains();
}

TEST_CASE("a name that means loopback on rank 0's host is listened at on the only interface that leads outward") {
  const TwoHosts hosts({"127.0.1.1 node-a\n", "10.77.0.1 node-a\n"});
  if (!hosts.is_there) return;
  hosts.check_trains();
}

TEST_CASE("a name that has all addresses of its host is not listened at on a bridge for containers") {
  const TwoHosts hosts({"10.77.0.1 node-a\n172.17.0.1 node-a\n", "10.77.0.1 node-a\n"});
  if (!hosts.is_there) return;
  const Result bridge = hosts.on_host(0,
                                      "ip link add docker0 type veth peer name other && ip link set docker0 up && "
                                      "ip link set other up && ip address add 172.17.0.1/16 dev docker0");
  REQUIRE_MESSAGE(bridge.exit_code == 0, bridge.error);
  const Result alone = hosts.start(0, {{"DTRAIN_TIMEOUT_SECONDS", "1"}})->wait();
  INFO(alone.error);
  CHECK_CONTAINS(alone.error, "rank 0 listens at 10.77.0.1:29500, and MASTER_ADDR is node-a");
  const Result inside = hosts.start(0, {{"DTRAIN_TIMEOUT_SECONDS", "1"}, {"MASTER_ADDR", "172.17.0.1"}})->wait();
  INFO(inside.error);
  CHECK_CONTAINS(inside.error, "rank 0 listens at 172.17.0.1:29500, and MASTER_ADDR is 172.17.0.1");
}

TEST_CASE("if the default route leads elsewhere, rank 0 says at once what to set, and so does the timeout's sentence") {
  const TwoHosts hosts({"127.0.1.1 node-a\n", "10.77.0.1 node-a\n"});
  if (!hosts.is_there) return;
  const Result other = hosts.on_host(0,
                                     "ip link add other0 type veth peer name other1 && ip link set other0 up && "
                                     "ip link set other1 up && ip address add 192.0.2.1/24 dev other0 && "
                                     "ip route add default via 192.0.2.254 dev other0");
  REQUIRE_MESSAGE(other.exit_code == 0, other.error);
  const std::string remedy =
      "It does not listen at eth0 (10.77.0.1): if other hosts connect by that, set DTRAIN_INTERFACE "
      "to it on ";
  {
    const std::unique_ptr<Program> rank_0 = hosts.start(0, {{"DTRAIN_TIMEOUT_SECONDS", "600"}});
    CHECK(
        rank_0->wait_for("the job's store listens at 192.0.2.1:29500 and 127.0.1.1:29500; node-a means a loopback "
                         "address on this host. " +
                         remedy + "this host"));
  }
  const std::unique_ptr<Program> rank_0 = hosts.start(0, {{"DTRAIN_TIMEOUT_SECONDS", "3"}});
  const std::unique_ptr<Program> rank_1 = hosts.start(1, {{"DTRAIN_TIMEOUT_SECONDS", "3"}});
  const Result first = rank_0->wait();
  INFO(first.error);
  support::check_ended(
      first, 75,
      {"only rank 0 of 2 joined, rank 1 did not; see whether they run and know the address of the store: "
       "rank 0 listens at 192.0.2.1:29500 and 127.0.1.1:29500, and MASTER_ADDR is node-a, which means a "
       "loopback address on its host. " +
       remedy + "its host"});
  const Result second = rank_1->wait();
  support::check_ended(second, 1, {"MASTER_ADDR and MASTER_PORT, and DTRAIN_INTERFACE on that host"});
  hosts.check_trains({{"DTRAIN_INTERFACE", "eth0"}});
}
