#pragma once
/// @file
/// Membership: a rank's numbers in its job (rank, local rank, node rank, sizes), known once all ranks have joined.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// All fields are known, also those that the launcher left open. A node is all ranks with one host id (boot id and
/// network namespace), not all ranks with one host name.
struct Membership {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int node_count = 1;
  std::string host;  ///< this rank's host name, for error sentences
  std::string job;   ///< hexadecimal id that the store draws for each attempt of the job; equal on every rank
  /// Lowest rank on another host, and that host's name; -1 if all ranks share this host.
  int other_host_rank = -1;
  std::string other_host;
  /// Job ranks of the members of a split-off group; null in the whole job. In such a group, `rank` and `world_size` are
  /// the group's; all other fields are the job's.
  std::shared_ptr<const std::vector<int>> job_ranks{};
  /// Numeric addresses of this rank's host. Only this rank knows them; empty if there is none.
  /// @{
  std::string named_address{};  ///< address that DTRAIN_INTERFACE names, if it is this host's
  std::string route_address{};  ///< local address of the connection to the store, unless it is loopback
  /// @}

  /// other_host for error sentences, with a remedy if both names are equal: two containers of a host have two host ids.
  std::string other_host_text() const {
    return other_host != host ? other_host
                              : other_host +
                                    " (of the same name but with another host id: where both are one host, set "
                                    "DTRAIN_HOST_ID to one value for all of its ranks)";
  }

  /// This rank's number in the job: causes contain it, and the job's failure is compared with it.
  int rank_in_job() const noexcept { return rank_in_job(rank); }

  /// Job rank of another rank of the group.
  int rank_in_job(int other) const noexcept {
    return job_ranks ? (*job_ranks)[static_cast<std::size_t>(other)] : other;
  }

  /// Job ranks of the group, in the order of its ranks.
  std::vector<int> ranks_in_job() const {
    std::vector<int> ranks;
    for (int other = 0; other < world_size; ++other) {
      ranks.push_back(rank_in_job(other));
    }
    return ranks;
  }

  /// This rank's Membership in a subgroup.
  /// @param ranks members by their ranks in this group, in the order of their new ranks; this rank is among them
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
