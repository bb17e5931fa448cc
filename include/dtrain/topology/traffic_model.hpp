#pragma once
/// @file
/// Traffic model: how many bytes the topologies' all_reduce moves over which links: pure functions, for models of a
/// step and for tests.

#include <algorithm>
#include <cstddef>
#include <span>

#include "dtrain/core/version.hpp"

/// All count bytes of payload of one all_reduce of `bytes` bytes, without a backend's headers, and are exact but for an
/// element in each block. What a rank or a node sends it also receives over all ranks or nodes together. Averages of
/// i32 and u8, and reductions by Accumulate::f32, send more: their partial results are wider (kernels::partial_type).
namespace DTRAIN_NAMESPACE::topology {

/// What rank `from` sends to rank `to` under a topology: a function of two ranks.
struct RingTraffic {
  double bytes;
  int ranks;

  /// 2 (n - 1) / n of the bytes, to the next rank only.
  constexpr double operator()(int from, int to) const noexcept {
    return ranks > 1 && to == (from + 1) % ranks ? 2 * (ranks - 1) * bytes / ranks : 0;
  }
};

/// Of topology::Tree.
struct TreeTraffic {
  double bytes;
  int ranks;

  /// The bytes, once up and once down each edge.
  constexpr double operator()(int from, int to) const noexcept {
    return from != to && (is_parent(from, to) || is_parent(to, from)) ? bytes : 0;
  }

 private:
  static constexpr bool is_parent(int rank, int of) noexcept { return of > 0 && (of - 1) / 2 == rank; }
};

/// Of topology::ParameterServer.
struct ParameterServerTraffic {
  double bytes;
  int ranks;
  int servers;

  /// To each server its shard, from each server the same.
  constexpr double operator()(int from, int to) const noexcept {
    const int serving = std::min(servers, ranks);
    const double shard = bytes / serving;
    return from == to ? 0 : (to < serving ? shard : 0) + (from < serving ? shard : 0);
  }
};

/// What one rank sends.
template <class Traffic>
constexpr double bytes_sent(const Traffic& traffic, int rank) noexcept {
  double sum = 0;
  for (int to = 0; to < traffic.ranks; ++to) {
    sum += to == rank ? 0 : traffic(rank, to);
  }
  return sum;
}

/// What leaves a node over its link. @param node_of the node of each rank
template <class Traffic>
constexpr double bytes_leaving(const Traffic& traffic, std::span<const int> node_of, int node) noexcept {
  double sum = 0;
  for (std::size_t from = 0; from < node_of.size(); ++from) {
    for (std::size_t to = 0; to < node_of.size(); ++to) {
      if (node_of[from] == node && node_of[to] != node) {
        sum += traffic(static_cast<int>(from), static_cast<int>(to));
      }
    }
  }
  return sum;
}

/// What leaves a node under Hierarchical over a backend whose own all_reduce sends 2 (m - 1) / m of the bytes among m
/// ranks, the least possible: all ranks of a node together send as much as one rank of a ring of nodes.
constexpr double hierarchical_bytes_leaving(double bytes, int nodes) noexcept {
  return nodes > 1 ? 2 * (nodes - 1) * bytes / nodes : 0;
}

/// The same for one of the ranks in cross-node groups, of which each node has as many as the smallest node has ranks.
constexpr double hierarchical_bytes_across(double bytes, int nodes, int cross_node_groups) noexcept {
  return hierarchical_bytes_leaving(bytes, nodes) / cross_node_groups;
}

}  // namespace DTRAIN_NAMESPACE::topology
