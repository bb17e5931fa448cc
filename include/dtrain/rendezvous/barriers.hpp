#pragma once
/// @file
/// Who has arrived at which barrier: a pure state machine.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/key_space.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Every rank passes each barrier once in a round. A completed barrier is forgotten, so that the next arrival at its
/// name opens the next round, and names that are no longer used cost nothing.
class Barriers {
 public:
  enum class Arrival : std::uint8_t { waiting = 1, completed, already_there };

  /// A barrier that somebody gave up: who is there, and who is not.
  struct Unfinished {
    std::string name;
    std::vector<int> arrived;  ///< with the one who gave up
    std::vector<int> missing;
  };

  explicit Barriers(int world_size) : world_size_(world_size) {}

  /// @param released gets every request of the round when the last rank arrives, this one included
  Arrival arrive(const std::string& name, int rank, RequestKey who, std::vector<RequestKey>& released) {
    std::map<int, RequestKey>& arrived = rounds_[name];
    if (!arrived.emplace(rank, who).second) {
      return Arrival::already_there;
    }
    if (arrived.size() < static_cast<std::size_t>(world_size_)) {
      names_.emplace(who, std::make_pair(name, rank));
      return Arrival::waiting;
    }
    for (const auto& [arrived_rank, request] : arrived) {
      released.push_back(request);
      names_.erase(request);
    }
    rounds_.erase(name);
    return Arrival::completed;
  }

  /// Takes an arrival back; nothing if there is no such (any more).
  std::optional<Unfinished> cancel(RequestKey who) {
    const auto found = names_.find(who);
    if (found == names_.end()) {
      return std::nullopt;
    }
    Unfinished result;
    const int rank = found->second.second;
    result.name = std::move(found->second.first);
    names_.erase(found);
    const auto round = rounds_.find(result.name);
    for (int each = 0; each < world_size_; ++each) {
      (round->second.contains(each) ? result.arrived : result.missing).push_back(each);
    }
    round->second.erase(rank);
    if (round->second.empty()) {
      rounds_.erase(round);
    }
    return result;
  }

  /// The barrier that a session waits in; nothing if in none.
  std::optional<std::string> waited_by(std::uint64_t session) const {
    const auto found = names_.lower_bound({session, 0});
    if (found == names_.end() || found->first.session != session) {
      return std::nullopt;
    }
    return found->second.first;
  }

  /// Takes back all arrivals of a session.
  void forget(std::uint64_t session) {
    for (auto it = names_.lower_bound({session, 0}); it != names_.end() && it->first.session == session;) {
      const RequestKey who = (it++)->first;
      cancel(who);
    }
  }

  /// Takes back every arrival at every barrier. @returns the requests, with the names of their barriers
  std::vector<std::pair<RequestKey, std::string>> clear() {
    std::vector<std::pair<RequestKey, std::string>> all;
    for (auto& [who, place] : names_) {
      all.emplace_back(who, std::move(place.first));
    }
    names_.clear();
    rounds_.clear();
    return all;
  }

  std::size_t size() const noexcept { return rounds_.size(); }

 private:
  int world_size_;
  std::map<std::string, std::map<int, RequestKey>> rounds_;
  std::map<RequestKey, std::pair<std::string, int>> names_;  ///< of those who wait: the barrier, and their rank
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
