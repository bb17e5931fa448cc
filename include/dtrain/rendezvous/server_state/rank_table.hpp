#pragma once
/// @file
/// RankTable of a JobState: whether each rank is joining, joined, left or lost. Pure.

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// "rank 1 on host a (process 12)"
inline std::string process_text(int rank, const std::string& host, std::int64_t process) {
  return format_text("rank {} on host {} (process {})", {rank, host, process});
}
inline std::string process_text(const Join& join) {
  return process_text(join.info.rank, join.info.host, join.process);
}

/// Number of a session of the server, never used twice.
using SessionId = std::uint64_t;

/// Identifies a pending request: its session, and its number in that session.
struct RequestKey {
  SessionId session = 0;
  std::uint64_t request = 0;

  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

/// The first and the last iterator of a session's requests in a map by RequestKeys.
template <class Map>
auto requests_of(Map& map, SessionId session) {
  return std::pair(map.lower_bound({session, 0}), map.lower_bound({session + 1, 0}));
}

/// Result of a Join: monostate if the rank has joined, else the reason.
using JoinResult = std::variant<std::monostate, Refused, Failure>;

/// The process of each rank, and whether it has joined, left or was lost.
class RankTable {
 public:
  enum class RankState : std::uint8_t { not_joined = 1, joined, left, lost };

  struct RankEntry {
    RankState state = RankState::not_joined;
    SessionId session = 0;
    RankInfo info;
    std::int64_t process = 0;

    std::string process_text() const { return rendezvous::process_text(info.rank, info.host, process); }
  };

  /// @param owner process that states the world size, for error sentences: "rank 0 on host a", "the launcher on host a"
  RankTable(int world_size, std::string owner)
      : owner_(std::move(owner)), entries_(static_cast<std::size_t>(world_size)) {}

  int world_size() const noexcept { return static_cast<int>(entries_.size()); }
  const RankEntry& at(int rank) const { return entries_.at(static_cast<std::size_t>(rank)); }

  /// @returns monostate if the rank was admitted; Refused if this process is no rank of the job, as every process that
  /// comes after all ranks have joined; a Failure, which ends the job, if world sizes or settings differ
  /// @param silence how long ago the process that has this rank was heard of
  JoinResult admit(SessionId session, const Join& join, std::chrono::milliseconds silence) {
    const int rank = join.info.rank;
    if (join.world_size != world_size()) {
      const std::string text = format_text("rank {} on host {} says that the world has {} ranks, {} that it has {}",
                                           {rank, join.info.host, join.world_size, owner_, world_size()});
      if (complete()) {
        return Refused{text + ", and all of them have joined; give each job a port of its own (MASTER_PORT)"};
      }
      return Failure{
          Cause{CauseKind::disagreement, rank, join.info.host, text + "; start all ranks with one world size"}};
    }
    if (rank < 0 || rank >= world_size()) {
      return Refused{
          format_text("rank {} is out of range in a world of {} ranks (0 to {}); correct the rank of this process",
                      {rank, world_size(), world_size() - 1})};
    }
    RankEntry& entry = entries_[static_cast<std::size_t>(rank)];
    if (entry.state != RankState::not_joined) {
      return Refused{format_text("rank {} is taken: {} has it{}",
                                 {rank, entry.process_text(), about_holder(entry, join, silence)})};
    }
    if (joined_ == 0) {
      settings_ = join.info.settings;
      settings_from_ = format_text("rank {} on host {}", {rank, join.info.host});
    } else if (const auto difference = first_difference(join.info.settings, settings_)) {
      return Failure{
          Cause{CauseKind::disagreement, rank, join.info.host,
                format_text("rank {} on host {} has {}, {} has {}; start all ranks with the same program and settings",
                            {rank, join.info.host, difference->first, settings_from_, difference->second})}};
    }
    entry = RankEntry{RankState::joined, session, join.info, join.process};
    entry.info.settings.clear();  // equal on all ranks: 10,000 copies of one text
    ++joined_;
    ++present_;
    return std::monostate{};
  }

  /// Entry of a rank that has joined, even if it has left or was lost since; else null.
  const RankEntry* find(int rank) const noexcept {
    const bool is_rank = rank >= 0 && rank < world_size();
    return is_rank && at(rank).state != RankState::not_joined ? &at(rank) : nullptr;
  }

  /// Entry of the same process (rank, host id and process id) if it is joined; else null.
  const RankEntry* find_process(const Join& join) const noexcept {
    const RankEntry* const entry = join.world_size == world_size() ? find(join.info.rank) : nullptr;
    const bool is_same = entry != nullptr && entry->state == RankState::joined &&
                         entry->info.host_id == join.info.host_id && entry->process == join.process;
    return is_same ? entry : nullptr;
  }

  /// Marks a joined rank as gone. @param how left or lost
  void remove(int rank, RankState how) {
    entries_[static_cast<std::size_t>(rank)].state = how;
    --present_;
  }

  /// Whether every rank has joined at some time.
  bool complete() const noexcept { return joined_ == entries_.size(); }

  /// Number of ranks that are joined now.
  std::size_t present() const noexcept { return present_; }

  /// The ranks in a state, ascending.
  std::vector<int> ranks_in(RankState state) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size(); ++rank) {
      if (at(rank).state == state) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  std::vector<RankInfo> info() const {
    std::vector<RankInfo> all;
    all.reserve(entries_.size());
    for (const RankEntry& entry : entries_) {
      all.push_back(entry.info);
    }
    return all;
  }

 private:
  /// Why a process does not get the rank that another one has, or had, and what to do.
  static std::string about_holder(const RankEntry& entry, const Join& join, std::chrono::milliseconds silence) {
    const bool is_same_host = entry.info.host_id == join.info.host_id;
    if (is_same_host && entry.process == join.process) {
      return ", and is this process; a process joins a job once: call dtrain::run() or init_process_group() only once";
    }
    if (entry.state != RankState::joined) {
      return format_text(", which {}; give each process its own rank",
                         {entry.state == RankState::left ? "has left" : "was lost"});
    }
    return format_text(
        ", {}, and was heard of {} ago; give each process its own rank, or, if this process was started in that one's "
        "place (a restarted pod), start the job again once that one is lost, after DTRAIN_LIVENESS_SECONDS of silence",
        {is_same_host ? "another process of this host" : "a process of another host", duration_text(silence)});
  }

  std::string owner_;
  std::string settings_;       ///< the settings of the first rank that joined
  std::string settings_from_;  ///< that rank and its host
  std::vector<RankEntry> entries_;
  std::size_t joined_ = 0;
  std::size_t present_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
