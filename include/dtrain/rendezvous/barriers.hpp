#pragma once
/// @file
/// Which ranks have arrived at which barrier: a pure state machine.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/key_waits.hpp"
#include "dtrain/rendezvous/rank_set.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Every rank that a barrier is of passes it once in a round. A completed barrier is forgotten, so that the next
/// arrival at its name opens the next round, and names that are no longer used cost nothing.
class Barriers {
 public:
  using Instant = KeyWaits::Instant;

  enum class Arrival : std::uint8_t { waiting = 1, completed, already_there, other_parties };

  /// A barrier that somebody gave up: who came, and who did not.
  struct Unfinished {
    std::string name;
    std::vector<int> arrived;  ///< with the one who gives up now
    std::vector<int> missing;
    std::vector<int> gave_up;  ///< those who had arrived and gave up before; the round goes on without them
    std::size_t parties = 0;   ///< how many ranks the barrier is of
    Instant since;             ///< when the first one arrived
  };

  explicit Barriers(int world_size) : all_(RankSet::first_of(world_size)) {}

  /// @param released gets every request of the round when the last rank arrives, this one included
  /// @param parties whose barrier it is, `rank` among them; none: all ranks'
  Arrival arrive(const std::string& name, int rank, RequestKey who, Instant now, std::vector<RequestKey>& released,
                 RankSet parties = {}) {
    const auto [place, is_new] = rounds_.try_emplace(name);
    Round& round = place->second;
    if (is_new) {
      round.since = now;
      round.parties = parties.runs.empty() ? all_ : std::move(parties);
      round.awaited = round.parties.size();
    } else if (round.parties != (parties.runs.empty() ? all_ : parties)) {
      return Arrival::other_parties;
    }
    if (!round.arrived.emplace(rank, who).second) {
      return Arrival::already_there;
    }
    round.gave_up.erase(rank);
    if (round.arrived.size() < round.awaited) {
      places_.emplace(who, Place{name, rank});
      return Arrival::waiting;
    }
    for (const auto& [arrived_rank, request] : round.arrived) {
      released.push_back(request);
      places_.erase(request);
    }
    rounds_.erase(place);
    return Arrival::completed;
  }

  /// Takes an arrival back; nothing if there is no such (any more).
  std::optional<Unfinished> cancel(RequestKey who) {
    const auto found = places_.find(who);
    if (found == places_.end()) {
      return std::nullopt;
    }
    const Round& round = rounds_.at(found->second.name);
    Unfinished result{found->second.name, {},         {}, {round.gave_up.begin(), round.gave_up.end()},
                      round.awaited,      round.since};
    for (const int rank : round.parties.ranks()) {
      if (round.arrived.contains(rank)) {
        result.arrived.push_back(rank);
      } else if (!round.gave_up.contains(rank)) {
        result.missing.push_back(rank);
      }
    }
    take_back(found);
    return result;
  }

  /// The barrier that a session waits in; nothing if in none.
  std::optional<std::string> waited_by(std::uint64_t session) const {
    const auto found = places_.lower_bound({session, 0});
    if (found == places_.end() || found->first.session != session) {
      return std::nullopt;
    }
    return found->second.name;
  }

  /// Takes back all arrivals of a session.
  void forget(std::uint64_t session) {
    for (auto it = places_.lower_bound({session, 0}); it != places_.end() && it->first.session == session;) {
      take_back(it++);
    }
  }

  /// Whose the barrier is that somebody waits in. @pre somebody does
  const RankSet& parties_of(const std::string& name) const { return rounds_.at(name).parties; }

  /// How much a session's barriers take in memory: the runs of their ranks.
  std::size_t runs_of(std::uint64_t session) const {
    std::size_t runs = 0;
    for (auto it = places_.lower_bound({session, 0}); it != places_.end() && it->first.session == session; ++it) {
      runs += rounds_.at(it->second.name).parties.runs.size();
    }
    return runs;
  }

  /// Takes back every arrival at the barriers that `rank` has a part in. @returns the requests
  std::vector<RequestKey> clear_those_of(int rank) {
    std::vector<RequestKey> cleared;
    for (auto it = places_.begin(); it != places_.end();) {
      const auto place = it++;
      if (parties_of(place->second.name).contains(rank)) {
        cleared.push_back(place->first);
        take_back(place);
      }
    }
    return cleared;
  }

  /// Takes back every arrival at every barrier. @returns the requests, with the names of their barriers
  std::vector<std::pair<RequestKey, std::string>> clear() {
    std::vector<std::pair<RequestKey, std::string>> all;
    for (auto& [who, place] : places_) {
      all.emplace_back(who, std::move(place.name));
    }
    places_.clear();
    rounds_.clear();
    return all;
  }

  std::size_t size() const noexcept { return rounds_.size(); }

 private:
  struct Round {
    Instant since;
    RankSet parties;
    std::size_t awaited = 0;  ///< how many they are
    std::map<int, RequestKey> arrived;
    std::set<int> gave_up;
  };
  /// Where a request waits.
  struct Place {
    std::string name;
    int rank = 0;
  };

  /// A round that nobody waits in is forgotten.
  void take_back(std::map<RequestKey, Place>::iterator place) {
    const auto round = rounds_.find(place->second.name);
    round->second.arrived.erase(place->second.rank);
    round->second.gave_up.insert(place->second.rank);
    if (round->second.arrived.empty()) {
      rounds_.erase(round);
    }
    places_.erase(place);
  }

  RankSet all_;
  std::map<std::string, Round> rounds_;
  std::map<RequestKey, Place> places_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
