#pragma once
/// @file
/// Who a rank is among the others, once all have joined.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Complete: what the launcher left open was learnt when all ranks joined. A node is a host as its ranks' host
/// identities tell it (boot id and network namespace), not a host name.
struct Membership {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int node_count = 1;
  std::string host;  ///< this rank's host name, for messages
  std::string job;   ///< hexadecimal, drawn by the store for this job and attempt; the same on every rank
  /// The first rank that is on another host than this one, and that host's name; -1 where all share this host.
  int other_host_rank = -1;
  std::string other_host;
  /// In a group that was split off: its ranks' numbers in the job. `rank` and `world_size` are the group's then, all
  /// else is the job's. Null in the whole job.
  std::shared_ptr<const std::vector<int>> job_ranks{};
  /// Numeric addresses of this rank's host, known to this rank alone; empty where there is none.
  /// @{
  std::string named_address{};  ///< what DTRAIN_INTERFACE names, where that is of this host
  std::string route_address{};  ///< this end of the connection with the store, unless that is loopback
  /// @}

  /// other_host for a sentence. Two hosts of one name may be one, of which two containers have two host ids.
  std::string other_host_text() const {
    return other_host != host ? other_host
                              : other_host +
                                    " (of the same name but with another host id: where both are one host, set "
                                    "DTRAIN_HOST_ID to one value for all of its ranks)";
  }

  /// What causes name, and what the job's failure is compared with.
  int rank_in_job() const noexcept { return rank_in_job(rank); }

  /// The same of another rank of the group.
  int rank_in_job(int other) const noexcept {
    return job_ranks ? (*job_ranks)[static_cast<std::size_t>(other)] : other;
  }

  /// The ranks of the group, as the job numbers them.
  std::vector<int> ranks_in_job() const {
    std::vector<int> ranks;
    for (int other = 0; other < world_size; ++other) {
      ranks.push_back(rank_in_job(other));
    }
    return ranks;
  }

  /// This rank in a group of some of this one's. @param ranks of this group, in their new order, this one among them
  Membership in_part_of(const std::vector<int>& ranks) const {
    std::vector<int> in_job;
    for (const int other : ranks) {
      in_job.push_back(rank_in_job(other));
    }
    Membership made = *this;
    made.job_ranks = std::make_shared<const std::vector<int>>(std::move(in_job));
    made.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    made.world_size = static_cast<int>(ranks.size());
    return made;
  }
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
