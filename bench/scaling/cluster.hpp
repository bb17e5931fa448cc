#pragma once
/// @file
/// What one all-reduce takes on a cluster: the latency-bandwidth model of its paths.

#include <algorithm>
#include <cstddef>

#include "dtrain/backend/message_passing/algorithms/halving_stages.hpp"

namespace bench {

/// A message of S bytes takes latency + S / bandwidth.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

/// Hosts with equally many ranks, each with one link to the others, in both directions at once.
struct Cluster {
  int hosts = 1;
  int ranks_per_host = 1;
  Link between{};                    ///< shared by all ranks of a host
  double inside_bytes_per_second{};  ///< of one rank that reduces, or is given, a byte inside its host

  int ranks() const noexcept { return hosts * ranks_per_host; }
};

/// A ring through all ranks, those of a host one after the other: 2 (n - 1) turns in which every rank sends 1/n of the
/// bytes and each host's link carries one rank's. Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009).
inline double ring_seconds(const Cluster& cluster, double bytes) {
  const double n = cluster.ranks();
  if (cluster.hosts == 1) {
    return n > 1 ? 2 * (n - 1) / n * bytes / cluster.inside_bytes_per_second : 0;
  }
  const double slowest =
      std::min(cluster.between.bytes_per_second,
               cluster.ranks_per_host > 1 ? cluster.inside_bytes_per_second : cluster.between.bytes_per_second);
  return 2 * (n - 1) * (cluster.between.latency_seconds + bytes / n / slowest);
}

/// Reduce-scatter inside each host, a ring of the hosts for each of its ranks' parts, all-gather inside: the host's
/// link carries 2 (h - 1) / h of the bytes, however many ranks share it.
inline double hierarchical_seconds(const Cluster& cluster, double bytes) {
  const double hosts = cluster.hosts;
  const double ranks = cluster.ranks_per_host;
  const double inside = ranks > 1 ? 2 * (ranks - 1) / ranks * bytes / cluster.inside_bytes_per_second : 0;
  const double between =
      2 * (hosts - 1) * (cluster.between.latency_seconds + bytes / hosts / cluster.between.bytes_per_second);
  return inside + (cluster.hosts > 1 ? between : 0);
}

/// Every rank sends `bytes` to a rank at the distance: inside its host, or all of a host over its link.
inline double exchange_seconds(const Cluster& cluster, int distance, double bytes) {
  return distance < cluster.ranks_per_host
             ? bytes / cluster.inside_bytes_per_second
             : cluster.between.latency_seconds + cluster.ranks_per_host * bytes / cluster.between.bytes_per_second;
}

/// What Mpi and Gloo do with long buffers. Shorter parts to more distant ranks, and back: see HalvingStages. Neighbours
/// share a host, so if it has a power of two ranks, its link carries 2 (h - 1) / h of the bytes, as in
/// hierarchical_seconds().
inline double halving_doubling_seconds(const Cluster& cluster, double bytes) {
  const dtrain::backend::message_passing::HalvingStages stages(cluster.ranks());
  double seconds = stages.extra_ranks() > 0 ? 2 * exchange_seconds(cluster, 1, bytes) : 0;
  for (std::size_t stage = 0; stage < stages.count(); ++stage) {
    const double part = bytes * static_cast<double>(stages.blocks(stage)) / stages.participants();
    for (int k = 1; k < stages.factor(stage); ++k) {
      seconds += 2 * exchange_seconds(cluster, k * stages.distance(stage), part);
    }
  }
  return seconds;
}

}  // namespace bench
