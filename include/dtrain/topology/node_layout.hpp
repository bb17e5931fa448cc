#pragma once
/// @file
/// Which ranks of a group share a node, and which of them meet across nodes.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/split.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// One rank's view. Nodes are numbered in the order of their first ranks in the group, and the ranks of a node in the
/// order of the group's: for groups that were split off, too. As many lanes lead across nodes as the smallest node has
/// ranks, one for each of a node's first ranks; further ranks take part inside their node only.
struct NodeLayout {
  int node = 0;
  int nodes = 1;
  int local_rank = 0;
  int local_size = 1;
  int lanes = 1;
  int ranks = 1;

  bool has_lane() const noexcept { return local_rank < lanes; }
  bool is_even() const noexcept { return local_size == lanes; }  ///< of this node
};

/// `node_of[rank]`: any number that the ranks of a node, and no others, have in common.
inline NodeLayout node_layout(const std::vector<int>& node_of, int rank) {
  std::vector<int> order;  // of the nodes
  std::vector<int> sizes;
  NodeLayout layout;
  layout.ranks = static_cast<int>(node_of.size());
  for (std::size_t other = 0; other < node_of.size(); ++other) {
    const auto found = std::find(order.begin(), order.end(), node_of[other]);
    const auto node = static_cast<std::size_t>(found - order.begin());
    if (found == order.end()) {
      order.push_back(node_of[other]);
      sizes.push_back(0);
    }
    if (static_cast<int>(other) == rank) {
      layout.node = static_cast<int>(node);
      layout.local_rank = sizes[node];
    }
    ++sizes[node];
  }
  layout.nodes = static_cast<int>(order.size());
  layout.local_size = sizes[static_cast<std::size_t>(layout.node)];
  layout.lanes = *std::min_element(sizes.begin(), sizes.end());
  return layout;
}

/// Collective, blocking: nodes are those of the rendezvous (hosts, as DTRAIN_HOST_ID or the system tells them).
/// @throws Error (timeout), JobFailed
inline NodeLayout exchange_node_layout(const backend::ChannelContext& context, Deadline deadline) {
  std::vector<int> node_of;
  for (const backend::SplitChoice& each :
       backend::gather_choices(context, context.name + "/nodes", {context.members.node_rank, 0}, deadline)) {
    node_of.push_back(each.color);
  }
  return node_layout(node_of, context.members.rank);
}

/// The ranks of this rank's node: one host, whatever the job's others are.
inline backend::ChannelContext inside_node(const backend::ChannelContext& context, const NodeLayout& layout) {
  backend::ChannelContext made = context;
  made.name += "/node-" + std::to_string(layout.node);
  made.members.job_rank = context.reporting_rank();
  made.members.rank = layout.local_rank;
  made.members.world_size = layout.local_size;
  made.members.other_host_rank = -1;
  made.members.other_host.clear();
  return made;
}

/// The ranks of all nodes that have this one's place in theirs.
inline backend::ChannelContext across_nodes(const backend::ChannelContext& context, const NodeLayout& layout) {
  backend::ChannelContext made = context;
  made.name += "/lane-" + std::to_string(layout.local_rank);
  made.members.job_rank = context.reporting_rank();
  made.members.rank = layout.node;
  made.members.world_size = layout.nodes;
  return made;
}

}  // namespace DTRAIN_NAMESPACE::topology
