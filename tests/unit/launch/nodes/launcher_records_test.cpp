#include "dtrain/launch/nodes/node_rendezvous.hpp"
#include "unit/launch/prelude.hpp"

using dtrain::from_bytes;
using dtrain::to_bytes;

namespace {

std::vector<NodeInfo> node_infos_of(const std::vector<int>& workers) {
  std::vector<NodeInfo> node_infos;
  for (const int count : workers) {
    node_infos.push_back({count, "h" + std::to_string(node_infos.size()), "id-" + std::to_string(node_infos.size())});
  }
  return node_infos;
}

}  // namespace

TEST_CASE("the ranks of uneven nodes follow each other without a gap") {
  for (const std::vector<int>& workers :
       std::vector<std::vector<int>>{{1}, {3, 1, 2}, {1, 1, 1, 1}, {4096, 1}, {2, 7, 1, 8, 2, 8}}) {
    const NodeTable table = table_of(node_infos_of(workers));
    CHECK(table.problem.empty());
    CHECK(table.node_count() == static_cast<int>(workers.size()));
    int expected = 0;
    for (int node = 0; node < table.node_count(); ++node) {
      CHECK(table.first_rank(node) == expected);
      expected += workers[static_cast<std::size_t>(node)];
    }
    CHECK(table.world_size() == expected);
  }
}

TEST_CASE("two nodes on one host, a node without workers and too many ranks are problems in words") {
  std::vector<NodeInfo> node_infos = node_infos_of({1, 2, 3});
  node_infos[2].host_id = node_infos[0].host_id;
  node_infos[2].host = "gpu-a";
  CHECK(table_of(node_infos).problem.find("nodes 0 and 2 are one host, gpu-a") == 0);
  CHECK_CONTAINS(table_of(node_infos).problem, "DTRAIN_HOST_ID");
  CHECK(table_of(node_infos_of({1, 0})).problem == "node 1 has 0 workers");
  CHECK(table_of(node_infos_of({1, -5})).problem == "node 1 has -5 workers");
  CHECK_CONTAINS(table_of(node_infos_of(std::vector<int>(300, 4096))).problem, "at most 1048576");
}

TEST_CASE("a table is a phrase, which does not grow with the nodes") {
  CHECK(to_string(table_of(node_infos_of({3, 1}))) == "4 ranks on 2 nodes (3 on node 0, 1 on node 1)");
  const std::string many = to_string(table_of(node_infos_of(std::vector<int>(1000, 8))));
  CHECK(many.find("8000 ranks on 1000 nodes (8 on node 0, ") == 0);
  CHECK(many.size() < 200);
}

TEST_CASE("nodes, tables, causes and failures travel as they are") {
  const NodeInfo info = from_bytes<NodeInfo>(to_bytes(NodeInfo{5, "h", "id"}), "it");
  CHECK(info.workers == 5);
  CHECK(info.host == "h");
  CHECK(info.host_id == "id");
  const NodeTable table = from_bytes<NodeTable>(to_bytes(NodeTable{{1, 2}, "trouble"}), "it");
  CHECK(table.workers == std::vector<int>{1, 2});
  CHECK(table.problem == "trouble");
  const Cause cause{CauseKind::timeout, 7, "h", "late"};
  const FailureRecord failure = from_bytes<FailureRecord>(to_bytes(FailureRecord{cause, true}), "it");
  CHECK(failure.secondary);
  CHECK(failure.cause.kind == CauseKind::timeout);
  CHECK(failure.cause.sentence() == cause.sentence());
  CHECK_THROWS_AS(from_bytes<NodeTable>(to_bytes(info), "it"), dtrain::Error);
}

TEST_CASE("keys of different attempts, nodes and ranks are different") {
  CHECK(LauncherKeys(0).start() != LauncherKeys(1).start());
  CHECK(LauncherKeys(1).left(2) == "attempt/1/left/2");
  CHECK(LauncherKeys(1).end(2) == "attempt/1/end/2");
  CHECK(LauncherKeys::node_info(3) == "node/3");
}

TEST_CASE("a lost launcher is named by its node and host, that of node 0 by its address") {
  CHECK(lost_launcher_message({CauseKind::lost, 2, "gpu-c", "silence"}, "a:1") ==
        "the launcher of node 2 on host gpu-c was lost, and with it the job: silence");
  CHECK(lost_launcher_message({CauseKind::exception, 1, "gpu-b", "no memory"}, "a:1") ==
        "the launcher of node 1 on host gpu-b ended the job: no memory");
  CHECK(lost_launcher_message({CauseKind::lost, -1, "", "closed"}, "a:1") ==
        "node 0's launcher at a:1 was lost, and with it the job: closed");
  CHECK(lost_launcher_message({CauseKind::timeout, -1, "", "node 1 is late"}, "a:1") ==
        "the launchers of this job did not all join: node 1 is late");
}

TEST_CASE("nodes that did not join are listed") {
  CHECK(node_list({1}) == "node 1");
  CHECK(node_list({1, 2, 3, 7}) == "nodes 1-3 and 7");
  CHECK(node_list({}) == "no node");
  const std::string missing = missing_nodes({1, 3}, 4, "600.0 s", "a:1", "its launcher listens at 127.0.0.1:1");
  CHECK(missing.find("nodes 1 and 3 of 4 did not join within 600.0 s") == 0);
  CHECK_CONTAINS(missing, "whether it can reach node 0 at a:1: its launcher listens at 127.0.0.1:1");
}
