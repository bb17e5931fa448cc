#pragma once
/// @file
/// Node assignment: pure function from the RankInfo of all ranks to the Membership of each.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A rank's description of itself when it joins. The store checks the values that the launcher stated as certain.
/// Values that are open or guesses stay empty; the store computes them.
struct RankInfo {
  int rank = 0;
  std::string host_id;
  std::string host;  ///< host name, for error sentences
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> node_count;
  std::string settings;  ///< lines "name=value" that must be equal on all ranks (job_settings.hpp)
};

namespace detail {

/// The sentence if a stated value differs from the computed one; nothing if they are equal or none was stated.
inline std::optional<std::string> mismatch(const RankInfo& info, std::string_view name, std::optional<int> stated,
                                           int computed, std::string_view why) {
  if (!stated || *stated == computed) {
    return std::nullopt;
  }
  return format_text(
      "rank {} on host {} was given {} {} by its launcher, but it is {}: {}; correct the variable or flag that states "
      "it, or leave it out",
      {info.rank, info.host, name, *stated, computed, why});
}

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

}  // namespace detail

/// Numbers nodes in the order of their first ranks, and the local ranks of a node in the order of its ranks. Example:
/// ranks 0 to 3 on hosts a, b, a, b have node ranks 0, 1, 0, 1 and local ranks 0, 0, 1, 1.
/// @param ranks one entry for each rank, in order
/// @param job the id of the job, which every rank gets
/// @returns a Membership for each rank, or the first disagreement between a stated and a computed value
inline std::variant<std::vector<Membership>, Cause> form_membership(const std::vector<RankInfo>& ranks,
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
    const std::string shared = own_node.size() == 1 ? "no other rank shares its host"
                                                    : std::to_string(own_node.size()) + " ranks share its host";
    const std::string hosts = format_text("the ranks run on {}{}, numbered in the order of their first ranks",
                                          {nodes.size(), nodes.size() == 1 ? " host" : " hosts"});
    std::optional<std::string> wrong =
        detail::mismatch(info, "local_world_size", info.local_world_size, member.local_world_size, shared);
    if (!wrong) {
      wrong = detail::mismatch(info, "local_rank", info.local_rank, member.local_rank,
                               shared + ", and their local ranks follow their ranks");
    }
    if (!wrong) {
      wrong = detail::mismatch(info, "node_count", info.node_count, member.node_count, hosts);
    }
    if (!wrong) {
      wrong = detail::mismatch(info, "node_rank", info.node_rank, member.node_rank, hosts);
    }
    if (wrong) {
      return Cause{CauseKind::disagreement, info.rank, info.host, *wrong + detail::same_name_elsewhere(ranks, info)};
    }
  }
  return members;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
