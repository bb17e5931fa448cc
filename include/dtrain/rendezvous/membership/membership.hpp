#pragma once
/// @file
/// Membership: a rank's numbers in its job (rank, local rank, node rank, sizes). RankInfo: a joining rank's description
/// of itself. Pure.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// Removes the first line from `text`, and returns it sanitized; "nothing" if there is none.
inline std::string take_line(std::string_view& text) {
  return text.empty() ? "nothing" : sanitize(next_entry(text, '\n'));
}

}  // namespace detail

/// The first pair of lines "name=value" that differ; nullopt if all lines are equal.
inline std::optional<std::pair<std::string, std::string>> first_difference(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    std::string first = detail::take_line(a);
    std::string second = detail::take_line(b);
    if (first != second) {
      return std::make_pair(std::move(first), std::move(second));
    }
  }
  return std::nullopt;
}

/// The place of a rank in its job, or in a subgroup. All fields are known, also those that the launcher left open. A
/// node is all ranks with one host id (boot id and network namespace), not all ranks with one host name.
/// @ingroup jobs
struct Membership {
  DTRAIN_MEMBERS_DEFINED_APART(Membership);

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
  std::string other_host_text() const;

  /// This rank's number in the job: causes contain it, and the job's failure is compared with it.
  int rank_in_job() const noexcept { return rank_in_job(rank); }

  /// Job rank of another rank of the group.
  int rank_in_job(int other) const noexcept {
    return job_ranks ? (*job_ranks)[static_cast<std::size_t>(other)] : other;
  }

  /// Job ranks of the group, in the order of its ranks.
  std::vector<int> ranks_in_job() const;

  /// This rank's Membership in a subgroup.
  /// @param ranks members by their ranks in this group, in the order of their new ranks; this rank is among them
  Membership in_part_of(const std::vector<int>& ranks) const;
};

/// A rank's description of itself when it joins. The store checks the values that the launcher stated as certain.
/// Values that are open or guesses stay empty; the store computes them.
/// @ingroup jobs
struct RankInfo {
  DTRAIN_MEMBERS_DEFINED_APART(RankInfo);

  int rank = 0;
  std::string host_id;
  std::string host;  ///< host name, for error sentences
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> node_count;
  std::string settings;  ///< lines "name=value" that must be equal on all ranks
};

/// Numbers nodes in the order of their first ranks, and the local ranks of a node in the order of its ranks. Example:
/// ranks 0 to 3 on hosts a, b, a, b have node ranks 0, 1, 0, 1 and local ranks 0, 0, 1, 1.
/// @param ranks one entry for each rank, in order
/// @param job the id of the job, which every rank gets
/// @returns a Membership for each rank, or the first disagreement between a stated and a computed value
std::variant<std::vector<Membership>, Cause> form_membership(const std::vector<RankInfo>& ranks,
                                                             const std::string& job);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINE_MEMBERS(Membership);
DTRAIN_DEFINE_MEMBERS(RankInfo);

DTRAIN_DEFINED std::string Membership::other_host_text() const {
  return other_host != host ? other_host
                            : other_host +
                                  " (of the same name but with another host id: where both are one host, set "
                                  "DTRAIN_HOST_ID to one value for all of its ranks)";
}

DTRAIN_DEFINED std::vector<int> Membership::ranks_in_job() const {
  std::vector<int> ranks;
  for (int other = 0; other < world_size; ++other) {
    ranks.push_back(rank_in_job(other));
  }
  return ranks;
}

DTRAIN_DEFINED Membership Membership::in_part_of(const std::vector<int>& ranks) const {
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

namespace detail {

/// A number of a rank: what its launcher stated, if anything, and what the store has computed.
struct StatedNumber {
  const char* name;
  std::optional<int> stated;
  int computed;
  bool is_of_host;  ///< it follows from the ranks on its host, not from the hosts
};

/// If another rank has the same host name but another host id, the remedy to append to the sentence; else empty.
inline std::string same_name_elsewhere(const std::vector<RankInfo>& ranks, const RankInfo& info) {
  for (const RankInfo& other : ranks) {
    if (other.host == info.host && other.host_id != info.host_id) {
      return format_text(
          " (rank {}'s host has the same name, {}, but the host ids differ: {} and {}; where both are one host, set "
          "DTRAIN_HOST_ID to one value for all of its ranks)",
          {other.rank, info.host, info.host_id, other.host_id});
    }
  }
  return {};
}

/// The sentence about a stated number that is wrong.
/// @param neighbours number of ranks on the rank's host, with itself
inline std::string mismatch(const std::vector<RankInfo>& ranks, const RankInfo& info, const StatedNumber& number,
                            std::size_t neighbours, std::size_t hosts) {
  const std::string shared = neighbours == 1 ? std::string("no other rank shares its host")
                                             : format_text("{} ranks share its host", {neighbours});
  const std::string why =
      number.is_of_host
          ? shared + (number.name == std::string_view("local_rank") ? ", and their local ranks follow their ranks" : "")
          : format_text("the ranks run on {}{}, numbered in the order of their first ranks",
                        {hosts, hosts == 1 ? " host" : " hosts"});
  return format_text(
      "rank {} on host {} was given {} {} by its launcher, but it is {}: {}; correct the variable or flag that states "
      "it, or leave it out{}",
      {info.rank, info.host, number.name, *number.stated, number.computed, why, same_name_elsewhere(ranks, info)});
}

}  // namespace detail

DTRAIN_DEFINED std::variant<std::vector<Membership>, Cause> form_membership(const std::vector<RankInfo>& ranks,
                                                                            const std::string& job) {
  std::unordered_map<std::string_view, std::size_t> node_of_host;
  std::vector<std::vector<int>> nodes;
  std::vector<Membership> members(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t node = node_of_host.emplace(ranks[i].host_id, nodes.size()).first->second;
    if (node == nodes.size()) {
      nodes.emplace_back();
    }
    members[i].local_rank = static_cast<int>(nodes[node].size());
    members[i].node_rank = static_cast<int>(node);
    nodes[node].push_back(ranks[i].rank);
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankInfo& info = ranks[i];
    Membership& member = members[i];
    const std::vector<int>& own_node = nodes[static_cast<std::size_t>(member.node_rank)];
    member.rank = info.rank;
    member.world_size = static_cast<int>(ranks.size());
    member.local_world_size = static_cast<int>(own_node.size());
    member.node_count = static_cast<int>(nodes.size());
    member.host = info.host;
    member.job = job;
    if (nodes.size() > 1) {
      member.other_host_rank = nodes[member.node_rank == 0 ? 1 : 0].front();
      member.other_host = ranks[static_cast<std::size_t>(member.other_host_rank)].host;
    }
    const detail::StatedNumber numbers[] = {{"local_world_size", info.local_world_size, member.local_world_size, true},
                                            {"local_rank", info.local_rank, member.local_rank, true},
                                            {"node_count", info.node_count, member.node_count, false},
                                            {"node_rank", info.node_rank, member.node_rank, false}};
    for (const detail::StatedNumber& number : numbers) {
      if (number.stated && *number.stated != number.computed) {
        return Cause{CauseKind::disagreement, info.rank, info.host,
                     detail::mismatch(ranks, info, number, own_node.size(), nodes.size())};
      }
    }
  }
  return members;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::rendezvous
