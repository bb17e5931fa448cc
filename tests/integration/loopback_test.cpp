// ctest: TIMEOUT 60 RUN_SERIAL ON
// A job of one node on hosts whose loopback interface is unusual: without 127.0.0.1, or down.

#include "integration/prelude.hpp"
#include "support/virtual_cluster.hpp"

using support::VirtualCluster;

namespace {

const std::string job = " --nproc-per-node=2 '*:join' '*:environment:MASTER_ADDR'";
const std::string alone = " --in-process '*:join' '*:stdout:joined\n'";

bool can_run(const VirtualCluster& cluster) {
  return dtrain_test::needs(cluster.problem.empty(), cluster.problem);
}

Result run_in_shell(const VirtualCluster& cluster, const std::string& script) {
  return cluster.run(0, "/bin/sh", {"-c", script});
}

}  // namespace

TEST_CASE("on a host with only ::1 a job meets there") {
  const VirtualCluster cluster(1);
  if (!can_run(cluster)) return;
  REQUIRE(run_in_shell(cluster, "ip address del 127.0.0.1/8 dev lo").exit_code == 0);
  if (!contains(run_in_shell(cluster, "ip address show dev lo").output, "::1/128")) {
    return dtrain_test::skip("this kernel has no IPv6");
  }
  const Result result = run_in_shell(cluster, "exec " + probe + job);
  INFO(result.error);
  support::check_printed(result, {"[0] MASTER_ADDR=::1\n", "[1] MASTER_ADDR=::1\n"});
  const Result single = run_in_shell(cluster, "exec " + probe + alone);
  INFO(single.error);
  CHECK(single.exit_code == 0);
  CHECK(single.output == "joined\n");
}

TEST_CASE("on a host whose loopback interface is down, the sentence says how to bring it up") {
  const VirtualCluster cluster(1);
  if (!can_run(cluster)) return;
  REQUIRE(run_in_shell(cluster, "ip link set lo down").exit_code == 0);
  const std::string sentence =
      "listening at 127.0.0.1 or ::1: Cannot assign requested address; this host's loopback interface is down or has "
      "no address; bring it up: ip link set lo up\n";
  const Result result = run_in_shell(cluster, "exec " + probe + job);
  CHECK(result.exit_code == 2);
  CHECK(result.output == "");
  CHECK(result.error == "dtrain: " + sentence);
  REQUIRE(run_in_shell(cluster, "ip link set lo up").exit_code == 0);
  CHECK(run_in_shell(cluster, "exec " + probe + job).exit_code == 0);
}

TEST_CASE("on a host whose loopback interface has never been up, it says so at once, and not at the timeout") {
  const VirtualCluster cluster(1);
  if (!can_run(cluster)) return;
  const Result result = run_in_shell(cluster, "exec unshare -n " + probe + job);
  support::check_ended(result, 2, {"bring it up: ip link set lo up"});
}
