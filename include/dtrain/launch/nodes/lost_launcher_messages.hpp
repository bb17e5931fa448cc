#pragma once
/// @file
/// Messages of a launcher about another launcher that is lost or does not join.

#include <string>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// @param cause the first cause of the launchers' job, in which node ranks are the ranks
/// @param store the address where node 0's launcher listens
inline std::string lost_launcher_message(const Cause& cause, const std::string& store) {
  if (cause.rank < 0) {
    return cause.kind == CauseKind::lost
               ? format_text("node 0's launcher at {} was lost, and with it the job: {}", {store, cause.text})
               : format_text("the launchers of this job did not all join: {}", {cause.text});
  }
  return format_text("the launcher of node {}{}{} {}: {}",
                     {cause.rank, cause.host.empty() ? "" : " on host ", cause.host,
                      cause.kind == CauseKind::lost ? "was lost, and with it the job" : "ended the job", cause.text});
}

/// "nodes 1 and 2": rank_list for nodes.
inline std::string node_list(const std::vector<int>& nodes) {
  std::string text = rendezvous::rank_list(nodes);
  return text.rfind("no rank", 0) == 0 ? "no node" : format_text("node{}", {text.substr(4)});
}

/// @param missing the nodes whose launchers have not joined
/// @param timeout how long the others waited: "600.0 s"
/// @param listens_at where the store of node 0 listens
inline std::string missing_nodes(const std::vector<int>& missing, int node_count, const std::string& timeout,
                                 const std::string& store, const std::string& listens_at) {
  return format_text(
      "{} of {} did not join within {}; start this program there too, with its --node-rank, the same --nnodes and the "
      "same DTRAIN_SECRET, and see whether it can reach node 0 at {}: {}",
      {node_list(missing), node_count, timeout, store, listens_at});
}

}  // namespace DTRAIN_NAMESPACE::launch
