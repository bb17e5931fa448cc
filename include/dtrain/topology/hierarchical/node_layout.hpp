#pragma once
/// @file
/// NodeLayout of a group: each node's ranks, and the groups across nodes of ranks with one local rank.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Node layout of a group, from one rank's view; the group may be the result of a split.
///  - Nodes are numbered in the order of their first ranks in the group.
///  - Local ranks follow the order of the group's ranks.
///  - The number of cross-node groups is the number of ranks of the smallest node. Cross-node group i has the ranks
///    with local rank i; ranks with a higher local rank take part inside their node only.
struct NodeLayout {
  struct Place {
    int node = 0;
    int local_rank = 0;
  };

  int node = 0;
  int nodes = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_node_groups = 1;
  int ranks = 1;
  std::vector<Place> places{};            ///< places of the group's ranks
  std::vector<int> node_members{};        ///< the group's ranks in this node, ascending
  std::vector<int> cross_node_members{};  ///< the rank of each node that has this local rank

  bool has_cross_node_group() const noexcept { return local_rank < cross_node_groups; }
  bool is_uniform() const noexcept { return ranks == cross_node_groups * nodes; }
  /// Whether all nodes have the same number of ranks, and each node's ranks follow the ranks of the node before.
  bool is_in_rank_order() const noexcept;
  /// Whether every rank of this node has a cross-node group.
  bool is_even() const noexcept { return local_size == cross_node_groups; }
};

/// @param node_of for each rank a number: equal for ranks of one node, different for ranks of different nodes
/// Example: node_of {7, 7, 9}, rank 1: node 0, local_rank 1, local_size 2, and one cross-node group, {0, 2}.
NodeLayout node_layout(const std::vector<int>& node_of, int rank);

/// Collective, blocking. Nodes are the rendezvous' nodes: hosts, by DTRAIN_HOST_ID or the system's identification.
/// @throws Error (timeout), JobFailed
NodeLayout exchange_node_layout(const backend::ChannelContext& context, Deadline deadline);

/// Context with the ranks of this rank's node, which are all on one host.
backend::ChannelContext inside_node(const backend::ChannelContext& context, const NodeLayout& layout);

/// Context with the ranks of all nodes that have this local rank. @pre layout.has_cross_node_group()
backend::ChannelContext across_nodes(const backend::ChannelContext& context, const NodeLayout& layout);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED bool NodeLayout::is_in_rank_order() const noexcept {
  for (int rank = 0; rank < ranks; ++rank) {
    if (places[static_cast<std::size_t>(rank)].node != rank / cross_node_groups) {
      return false;
    }
  }
  return is_uniform();
}

DTRAIN_DEFINED NodeLayout node_layout(const std::vector<int>& node_of, int rank) {
  std::vector<int> order;  // numbers of the nodes, in the order of their first ranks
  std::vector<std::vector<int>> members;
  NodeLayout layout;
  layout.ranks = static_cast<int>(node_of.size());
  for (std::size_t other = 0; other < node_of.size(); ++other) {
    const auto found = std::find(order.begin(), order.end(), node_of[other]);
    const auto node = static_cast<std::size_t>(found - order.begin());
    if (found == order.end()) {
      order.push_back(node_of[other]);
      members.emplace_back();
    }
    layout.places.push_back({static_cast<int>(node), static_cast<int>(members[node].size())});
    members[node].push_back(static_cast<int>(other));
  }
  layout.node = layout.places[static_cast<std::size_t>(rank)].node;
  layout.local_rank = layout.places[static_cast<std::size_t>(rank)].local_rank;
  layout.nodes = static_cast<int>(order.size());
  layout.node_members = members[static_cast<std::size_t>(layout.node)];
  layout.local_size = static_cast<int>(layout.node_members.size());
  layout.cross_node_groups = layout.local_size;
  for (const std::vector<int>& node : members) {
    layout.cross_node_groups = std::min(layout.cross_node_groups, static_cast<int>(node.size()));
  }
  if (layout.has_cross_node_group()) {
    for (const std::vector<int>& node : members) {
      layout.cross_node_members.push_back(node[static_cast<std::size_t>(layout.local_rank)]);
    }
  }
  return layout;
}

DTRAIN_DEFINED NodeLayout exchange_node_layout(const backend::ChannelContext& context, Deadline deadline) {
  const auto self = backend::StoreRank::of(context, deadline, "exchanging the nodes of channel '" + context.name + "'");
  const auto own = [&] { return context.members.node_rank; };
  const std::vector<int> node_of = backend::store_all_gather(self, context.name + "/nodes", own, "a rank's node");
  return node_layout(node_of, context.members.rank);
}

DTRAIN_DEFINED backend::ChannelContext inside_node(const backend::ChannelContext& context, const NodeLayout& layout) {
  backend::ChannelContext made = context;
  made.name += "/node-" + std::to_string(layout.node);
  made.members = context.members.in_part_of(layout.node_members);
  made.members.other_host_rank = -1;
  made.members.other_host.clear();
  return made;
}

DTRAIN_DEFINED backend::ChannelContext across_nodes(const backend::ChannelContext& context, const NodeLayout& layout) {
  backend::ChannelContext made = context;
  made.name += "/across-" + std::to_string(layout.local_rank);
  made.members = context.members.in_part_of(layout.cross_node_members);
  return made;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::topology
