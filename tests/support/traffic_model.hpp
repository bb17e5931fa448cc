#pragma once
/// @file
/// Traffic model: bytes per link of each topology's all_reduce; pure functions.

#include <algorithm>
#include <cstddef>
#include <span>

/// All functions count the payload bytes of one all_reduce of `bytes` bytes, without a backend's headers. They are
/// exact up to one element for each block. In total, a rank or a node receives as many bytes as it sends. Averages of
/// i32 and u8, and reductions by Accumulate::f32, send more: their partial results are wider (kernels::partial_type).
namespace support {

/// Bytes that rank `from` sends to rank `to` under topology::Ring.
struct RingTraffic {
  double bytes;
  int ranks;

  /// 2 (n - 1) / n of the bytes, to the next rank only.
  constexpr double operator()(int from, int to) const noexcept {
    return ranks > 1 && to == (from + 1) % ranks ? 2 * (ranks - 1) * bytes / ranks : 0;
  }
};

/// Bytes that rank `from` sends to rank `to` under topology::Tree.
struct TreeTraffic {
  double bytes;
  int ranks;

  /// All bytes, once up and once down each edge.
  constexpr double operator()(int from, int to) const noexcept {
    return from != to && (is_parent(from, to) || is_parent(to, from)) ? bytes : 0;
  }

 private:
  static constexpr bool is_parent(int rank, int of) noexcept { return of > 0 && (of - 1) / 2 == rank; }
};

/// Bytes that rank `from` sends to rank `to` under topology::ParameterServer.
struct ParameterServerTraffic {
  double bytes;
  int ranks;
  int servers;

  /// A rank sends each server its shard, and a server sends each rank the server's shard.
  constexpr double operator()(int from, int to) const noexcept {
    const int serving = std::min(servers, ranks);
    const double shard = bytes / serving;
    return from == to ? 0 : (to < serving ? shard : 0) + (from < serving ? shard : 0);
  }
};

/// Bytes that one rank sends.
template <class Traffic>
constexpr double bytes_sent(const Traffic& traffic, int rank) noexcept {
  double sum = 0;
  for (int to = 0; to < traffic.ranks; ++to)
    sum += to == rank ? 0 : traffic(rank, to);
  return sum;
}

/// Bytes that leave a node over its link. @param node_of the node of each rank
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

/// Bytes that leave a node under Hierarchical: all ranks of a node together send as much as one rank of a ring of
/// nodes.
/// @pre the backend's own all_reduce sends 2 (m - 1) / m of the bytes among m ranks, the minimum
constexpr double hierarchical_bytes_leaving(double bytes, int nodes) noexcept {
  return nodes > 1 ? 2 * (nodes - 1) * bytes / nodes : 0;
}

/// The same for one rank of a cross-node group. Each node has one such rank for each rank of the smallest node.
constexpr double hierarchical_bytes_across(double bytes, int nodes, int cross_node_groups) noexcept {
  return hierarchical_bytes_leaving(bytes, nodes) / cross_node_groups;
}

}  // namespace support
