#pragma once
/// @file
/// Who has arrived at which barrier: a pure state machine.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/key_waits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Every rank passes each barrier once in a round. A completed barrier is forgotten, so that the next arrival at its
/// name opens the next round, and names that are no longer used cost nothing.
class Barriers {
 public:
  using Instant = KeyWaits::Instant;

  enum class Arrival : std::uint8_t { waiting = 1, completed, already_there };

  /// A barrier that somebody gave up: who came, and who did not.
  struct Unfinished {
    std::string name;
    std::vector<int> arrived;  ///< with the one who gives up now
    std::vector<int> missing;
    std::vector<int> gave_up;  ///< those who had arrived and gave up before; the round goes on without them
    Instant since;             ///< when the first one arrived
  };

  explicit Barriers(int world_size) : world_size_(world_size) {}

  /// @param released gets every request of the round when the last rank arrives, this one included
  Arrival arrive(const std::string& name, int rank, RequestKey who, Instant now, std::vector<RequestKey>& released) {
    const auto [place, is_new] = rounds_.try_emplace(name);
    Round& round = place->second;
    if (is_new) {
      round.since = now;
    }
    if (!round.arrived.emplace(rank, who).second) {
      return Arrival::already_there;
    }
    round.gave_up.erase(rank);
    if (round.arrived.size() < static_cast<std::size_t>(world_size_)) {
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
    Unfinished result{found->second.name, {}, {}, {round.gave_up.begin(), round.gave_up.end()}, round.since};
    for (int rank = 0; rank < world_size_; ++rank) {
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

  int world_size_;
  std::map<std::string, Round> rounds_;
  std::map<RequestKey, Place> places_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
