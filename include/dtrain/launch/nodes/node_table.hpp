#pragma once
/// @file
/// Node table: the ranks of each node, from each launcher's number of workers; pure.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dtrain/rendezvous/protocol/limits.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A launcher's information about its node. A record (see record.hpp).
struct NodeInfo {
  int workers = 1;
  std::string host;     ///< its name, for messages
  std::string host_id;  ///< see rendezvous/membership/host_identity.hpp

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.number(self.workers);
    fields.text(self.host);
    fields.text(self.host_id);
  }
};

/// The table that node 0 sends to all launchers. A record (see record.hpp).
struct NodeTable {
  std::vector<int> workers;  ///< of each node
  std::string problem;       ///< why these nodes cannot form a job; empty if they can

  int node_count() const noexcept { return static_cast<int>(workers.size()); }

  /// Number of ranks on nodes with a lower node rank.
  int first_rank(int node) const noexcept {
    int rank = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(node) && i < workers.size(); ++i) {
      rank += workers[i];
    }
    return rank;
  }
  int world_size() const noexcept { return first_rank(node_count()); }

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.numbers(self.workers);
    fields.text(self.problem);
  }
};

/// @param node_infos one for each node, in order
inline NodeTable table_of(const std::vector<NodeInfo>& node_infos) {
  NodeTable table;
  std::map<std::string, std::size_t> node_of_host;
  std::int64_t ranks = 0;
  for (std::size_t node = 0; node < node_infos.size(); ++node) {
    const NodeInfo& info = node_infos[node];
    table.workers.push_back(info.workers);
    ranks += info.workers;
    const auto [position, is_new] = node_of_host.emplace(info.host_id, node);
    if (!is_new && table.problem.empty()) {
      table.problem = "nodes " + std::to_string(position->second) + " and " + std::to_string(node) + " are one host, " +
                      info.host +
                      "; start one launcher on each host (with more workers: "
                      "--nproc-per-node), or set another DTRAIN_HOST_ID for each to let one host be several nodes";
    }
    if (info.workers < 1 && table.problem.empty()) {
      table.problem = "node " + std::to_string(node) + " has " + std::to_string(info.workers) + " workers";
    }
  }
  if (ranks > rendezvous::max_world_size && table.problem.empty()) {
    table.problem = "all nodes together have " + std::to_string(ranks) + " workers; at most " +
                    std::to_string(rendezvous::max_world_size) + " are possible";
  }
  return table;
}

/// "4 ranks on 2 nodes (3 on node 0, 1 on node 1)"; lists at most 8 nodes.
inline std::string to_string(const NodeTable& table) {
  constexpr std::size_t most = 8;
  std::string text =
      std::to_string(table.world_size()) + " ranks on " + std::to_string(table.node_count()) + " nodes (";
  for (std::size_t node = 0; node < table.workers.size() && node < most; ++node) {
    text += (node == 0 ? "" : ", ") + std::to_string(table.workers[node]) + " on node " + std::to_string(node);
  }
  return text + (table.workers.size() > most ? ", ...)" : ")");
}

}  // namespace DTRAIN_NAMESPACE::launch
