#pragma once
/// @file
/// Launcher records: keys and values that JobCoordinator and NodeRendezvous of each node write to node 0's store.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/protocol/session_codec.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Keys of an attempt begin with "attempt/" and its number. Stop requests concern the job, not an attempt.
class LauncherKeys {
 public:
  explicit LauncherKeys(int attempt) : attempt_(format_text("attempt/{}/", {attempt})) {}

  static std::string node_info(int node) { return "node/" + std::to_string(node); }        ///< NodeInfo
  static std::string table() { return "nodes"; }                                           ///< NodeTable
  static std::string stop(int count) { return "stop/" + std::to_string(count); }           ///< a signal
  std::string start() const { return attempt_ + "start"; }                                 ///< ranks can join
  std::string complete() const { return attempt_ + "complete"; }                           ///< all ranks have joined
  std::string cause() const { return attempt_ + "cause"; }                                 ///< FailureRecord
  std::string failing() const { return attempt_ + "failing"; }                             ///< FailureRecord
  std::string left(int rank) const { return format_text("{}left/{}", {attempt_, rank}); }  ///< it has left
  std::string end(int node) const { return format_text("{}end/{}", {attempt_, node}); }    ///< NodeEnd
  std::string job_result() const { return attempt_ + "job_result"; }                       ///< JobResult

 private:
  std::string attempt_;
};

/// The subject of the sentence about a value that cannot be read (see from_bytes).
inline constexpr std::string_view launcher_value = "what another launcher of this job wrote";

/// A failure, as a launcher reports it to the others.
struct FailureRecord {
  Cause cause;
  bool secondary = false;  ///< a worker's, caused by a failure that the ranks know already
};

inline void fields(Serializer& of, FailureRecord& record) {
  rendezvous::fields(of, record.cause);
  of.flag(record.secondary);
}

/// A launcher's information about its node.
struct NodeInfo {
  int workers = 1;
  std::string host;     ///< its name, for messages
  std::string host_id;  ///< see rendezvous/membership/host_identity.hpp
};

inline void fields(Serializer& of, NodeInfo& info) {
  of.number(info.workers);
  of.text(info.host, rendezvous::max_name_bytes);
  of.text(info.host_id, rendezvous::max_name_bytes);
}

/// The table that node 0 sends to all launchers.
struct NodeTable {
  std::vector<int> workers;  ///< of each node
  std::string problem;       ///< why these nodes cannot form a job; empty if they can

  int node_count() const noexcept { return static_cast<int>(workers.size()); }

  /// Number of ranks on nodes with a lower node rank.
  int first_rank(int node) const noexcept {
    return std::accumulate(workers.begin(), workers.begin() + std::min(node, node_count()), 0);
  }
  int world_size() const noexcept { return first_rank(node_count()); }
};

inline void fields(Serializer& of, NodeTable& table) {
  of.list(table.workers, 0, rendezvous::max_world_size, [&of](int& workers) { of.number(workers); });
  of.text(table.problem, rendezvous::max_sentence_bytes);
}

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
      table.problem = format_text(
          "nodes {} and {} are one host, {}; start one launcher on each host (with more workers: --nproc-per-node), or "
          "set another DTRAIN_HOST_ID for each to let one host be several nodes",
          {position->second, node, info.host});
    }
    if (info.workers < 1 && table.problem.empty()) {
      table.problem = format_text("node {} has {} workers", {node, info.workers});
    }
  }
  if (ranks > rendezvous::max_world_size && table.problem.empty()) {
    table.problem =
        format_text("all nodes together have {} workers; at most {} are possible", {ranks, rendezvous::max_world_size});
  }
  return table;
}

/// "4 ranks on 2 nodes (3 on node 0, 1 on node 1)"; lists at most 8 nodes.
inline std::string to_string(const NodeTable& table) {
  constexpr std::size_t most = 8;
  std::string text = format_text("{} ranks on {} nodes (", {table.world_size(), table.node_count()});
  for (std::size_t node = 0; node < table.workers.size() && node < most; ++node) {
    append_text(text, "{}{} on node {}", {node == 0 ? "" : ", ", table.workers[node], node});
  }
  return text + (table.workers.size() > most ? ", ...)" : ")");
}

}  // namespace DTRAIN_NAMESPACE::launch
