#include "dtrain/launch/nodes/job_coordinator.hpp"

#include "dtrain/async/when_all.hpp"
#include "support/free_port.hpp"
#include "unit/launch/prelude.hpp"

namespace coordinator_test {

using dtrain::async::Task;

NodeLauncherOptions options_of(int node, int port) {
  NodeLauncherOptions options;
  options.node.node_rank = node;
  options.node.node_count = 2;
  options.node.master_addr = "127.0.0.1";
  options.node.master_port = port;
  options.secret = dtrain::rendezvous::Secret::of("0123456789abcdef", "the test");
  options.liveness = std::chrono::seconds(60);
  return options;
}

/// Two nodes with a rank each. Node 1's launcher is a JobCoordinator; the test writes what node 0's launcher writes.
class TwoNodes {
 public:
  /// What node 1 takes for the end of its rank 1, while `publish` runs on node 0.
  bool has_left(const std::function<Task<>(NodeRendezvous& node_0)>& publish) {
    std::optional<bool> left;
    loop_.run_until(run(publish, left), support::soon());
    return left.value();
  }

  Task<> sleep_for(milliseconds time) { co_await loop_.sleep_for(time); }

  /// Node 1's launcher receives a signal.
  Task<> stop() {
    node_1_.stop(SIGTERM, 1);
    co_return;
  }

 private:
  Task<> run(const std::function<Task<>(NodeRendezvous&)>& publish, std::optional<bool>& left) {
    Task<> joining = both(node_0_.join(), assign_ranks());
    co_await std::move(joining);
    co_await node_0_.set(LauncherKeys(0).start(), "start");
    co_await node_1_.begin(0);
    Task<> asking = both(ask(left), publish(node_0_));
    co_await std::move(asking);
    Task<> leaving = both(node_0_.leave(), node_1_.leave());
    co_await std::move(leaving);
  }

  Task<> both(Task<> one, Task<> other) {
    std::vector<Task<>> tasks;
    tasks.push_back(std::move(one));
    tasks.push_back(std::move(other));
    return dtrain::async::when_all(loop_, std::move(tasks), support::soon());
  }

  Task<> assign_ranks() {
    const NodePlan plan = co_await node_1_.assign_ranks();
    CHECK(plan.first_rank == 1);
  }

  Task<> ask(std::optional<bool>& left) { left = co_await node_1_.has_left(1); }

  dtrain::async::EventLoop loop_;
  dtrain::async::AutoResetEvent changed_{loop_};
  const int port_ = support::free_port();
  const std::array<NodeLauncherOptions, 2> options_{options_of(0, port_), options_of(1, port_)};
  const std::array<dtrain::rendezvous::HostIdentity, 2> hosts_{{{"id-0", "host-0"}, {"id-1", "host-1"}}};
  NodeRendezvous node_0_{loop_, changed_, options_[0], hosts_[0]};
  JobCoordinator node_1_{loop_, changed_, options_[1], hosts_[1], [](int, int) {}};
};

Task<> publish_cause(NodeRendezvous& node_0, int rank) {
  const std::string value = dtrain::to_bytes(FailureRecord{{CauseKind::lost, rank, "host", "killed"}});
  co_await node_0.set(LauncherKeys(0).cause(), value);
}

TEST_CASE("a rank of another node that has left is known to have left, also if node 0's launcher stalls meanwhile") {
  TwoNodes nodes;
  CHECK(nodes.has_left([&nodes](NodeRendezvous& node_0) -> Task<> {
    co_await nodes.sleep_for(milliseconds(700));
    co_await node_0.set(LauncherKeys(0).left(1), "yes");
  }));
}

TEST_CASE("a rank of another node that has not left is known to be lost by the job's cause") {
  TwoNodes nodes;
  CHECK(!nodes.has_left([](NodeRendezvous& node_0) { return publish_cause(node_0, 1); }));
}

TEST_CASE(
    "in a job that fails or is stopped, no launcher waits for the liveness time to know whether a rank has left") {
  TwoNodes failed;
  CHECK(!failed.has_left([](NodeRendezvous& node_0) { return publish_cause(node_0, 0); }));
  TwoNodes stopped;
  CHECK(!stopped.has_left([&stopped](NodeRendezvous&) { return stopped.stop(); }));
}

}  // namespace coordinator_test
