#pragma once
/// @file
/// Barriers of a RequestHandler: the ranks that have arrived at each barrier of a job's store. Pure.

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/server_state/rank_table.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Each member of a barrier passes it once a round. A completed round is erased, so that the next arrival begins a new
/// round, and names that are no longer used need no memory.
class Barriers {
 public:
  using Instant = Deadline::Clock::time_point;

  enum class ArrivalResult : std::uint8_t { waiting = 1, completed, already_there, other_members };

  /// State of a barrier in which a request was cancelled.
  struct Unfinished {
    std::string name;
    std::vector<int> arrived;  ///< including the rank of the cancelled request
    std::vector<int> missing;
    std::vector<int> cancelled;  ///< arrived and cancelled before, and have not arrived again
    std::size_t members = 0;     ///< number of ranks of the barrier
    Instant since;               ///< the time at which the first one arrived
  };

  explicit Barriers(int world_size) : all_(RankSet::first_of(world_size)) {}

  /// @param released receives every request of the round when the last rank arrives, including this one
  /// @param members ranks of the barrier, including `rank`; empty: all ranks
  ArrivalResult arrive(const std::string& name, int rank, RequestKey id, Instant now, std::vector<RequestKey>& released,
                       RankSet members = {}) {
    const auto [place, is_new] = rounds_.try_emplace(name);
    Round& round = place->second;
    if (is_new) {
      round.since = now;
      round.members = members.ranges.empty() ? all_ : std::move(members);
      round.awaited = round.members.size();
    } else if (round.members != (members.ranges.empty() ? all_ : members)) {
      return ArrivalResult::other_members;
    }
    if (!round.arrived.emplace(rank, id).second) {
      return ArrivalResult::already_there;
    }
    round.cancelled.erase(rank);
    if (round.arrived.size() < round.awaited) {
      arrivals_.emplace(id, BarrierArrival{name, rank});
      return ArrivalResult::waiting;
    }
    for (const auto& [arrived_rank, request] : round.arrived) {
      released.push_back(request);
      arrivals_.erase(request);
    }
    rounds_.erase(place);
    return ArrivalResult::completed;
  }

  /// Removes the arrival of a request; nullopt if there is none (any more).
  std::optional<Unfinished> cancel(RequestKey id) {
    const auto found = arrivals_.find(id);
    if (found == arrivals_.end()) {
      return std::nullopt;
    }
    const Round& round = rounds_.at(found->second.name);
    Unfinished result{found->second.name, {},         {}, {round.cancelled.begin(), round.cancelled.end()},
                      round.awaited,      round.since};
    for (const int rank : round.members.ranks()) {
      if (round.arrived.contains(rank)) {
        result.arrived.push_back(rank);
      } else if (!round.cancelled.contains(rank)) {
        result.missing.push_back(rank);
      }
    }
    take_back(found);
    return result;
  }

  /// A barrier that the session waits in; nullopt if there is none.
  std::optional<std::string> waited_by(SessionId session) const {
    const auto [first, last] = requests_of(arrivals_, session);
    return first == last ? std::nullopt : std::optional(first->second.name);
  }

  /// Removes all arrivals of a session.
  void forget(SessionId session) {
    for (auto [at, last] = requests_of(arrivals_, session); at != last;) {
      take_back(at++);
    }
  }

  /// The ranks of a barrier. @pre a rank waits in it
  const RankSet& members_of(const std::string& name) const { return rounds_.at(name).members; }

  /// Number of rank ranges of a session's barriers: a measure of their memory.
  std::size_t ranges_of(SessionId session) const {
    std::size_t ranges = 0;
    for (auto [at, last] = requests_of(arrivals_, session); at != last; ++at) {
      ranges += members_of(at->second.name).ranges.size();
    }
    return ranges;
  }

  /// Removes every arrival at the barriers of `rank`. @returns the requests
  std::vector<RequestKey> clear_those_of(int rank) {
    std::vector<RequestKey> cleared;
    for (auto next = arrivals_.begin(); next != arrivals_.end();) {
      const auto place = next++;
      if (members_of(place->second.name).contains(rank)) {
        cleared.push_back(place->first);
        take_back(place);
      }
    }
    return cleared;
  }

  /// Removes every arrival at every barrier. @returns the requests, with the names of their barriers
  std::vector<std::pair<RequestKey, std::string>> clear() {
    std::vector<std::pair<RequestKey, std::string>> all;
    for (auto& [id, place] : arrivals_) {
      all.emplace_back(id, std::move(place.name));
    }
    arrivals_.clear();
    rounds_.clear();
    return all;
  }

  std::size_t size() const noexcept { return rounds_.size(); }

 private:
  struct Round {
    Instant since;
    RankSet members;
    std::size_t awaited = 0;  ///< number of members
    std::map<int, RequestKey> arrived;
    std::set<int> cancelled;
  };
  /// The barrier in which a request waits, and its rank.
  struct BarrierArrival {
    std::string name;
    int rank = 0;
  };

  /// Removes an arrival, and its round if no other arrival is left.
  void take_back(std::map<RequestKey, BarrierArrival>::iterator place) {
    const auto round = rounds_.find(place->second.name);
    round->second.arrived.erase(place->second.rank);
    round->second.cancelled.insert(place->second.rank);
    if (round->second.arrived.empty()) {
      rounds_.erase(round);
    }
    arrivals_.erase(place);
  }

  RankSet all_;
  std::map<std::string, Round> rounds_;
  std::map<RequestKey, BarrierArrival> arrivals_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
