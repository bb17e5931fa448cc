#pragma once
/// @file
/// Who a rank is among the others, once all have joined.

#include <optional>
#include <string>

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
  std::string job;   ///< hexadecimal, drawn by the store for this job and generation; the same on every rank
  /// The first rank that is on another host than this one, and that host's name; -1 where all share this host.
  int other_host_rank = -1;
  std::string other_host;
  /// In a group that was split off: this rank's number in the job. `rank` and `world_size` are the group's then, all
  /// else is the job's.
  std::optional<int> job_rank{};
  /// Numeric addresses of this rank's host, known to this rank alone; empty where there is none.
  /// @{
  std::string named_address{};  ///< what DTRAIN_INTERFACE names, where that is of this host
  std::string route_address{};  ///< this end of the connection with the store, unless that is loopback
  /// @}

  /// What causes name, and what the job's failure is compared with.
  int rank_in_job() const noexcept { return job_rank.value_or(rank); }
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
