#pragma once
/// @file
/// KeyWaiters: pure state machine of the requests that wait for keys. KeyValueMap owns it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Identifies a pending request: its session, and its number in that session.
struct RequestKey {
  std::uint64_t session = 0;
  std::uint64_t request = 0;

  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

/// A wait ends when all its keys exist at once: if a is set and erased before b is set, a wait for both continues. The
/// caller knows which keys exist: it passes `exists(key)`, and calls on_added() and on_erased() at each change.
class KeyWaiters {
 public:
  using Instant = Deadline::Clock::time_point;

  /// A wait that ended because all its keys exist.
  struct Released {
    RequestKey id;
    RequestKind kind = RequestKind::wait;
    std::vector<std::string> keys;
    std::int64_t readers = 0;  ///< of a take
  };

  /// A wait that was cancelled.
  struct Cancelled {
    std::vector<std::string> missing;  ///< each once, in the order of the request
    std::size_t keys = 0;              ///< number of different keys
    Instant since;
  };

  /// Registers a wait. @returns false, without a wait, if all keys exist
  /// @param keys at least one; repeated keys count once
  template <class Exists>
  bool add(RequestKey id, RequestKind kind, std::vector<std::string> keys, Instant now, const Exists& exists,
           std::int64_t readers = 0) {
    bool all = true;
    for (const std::string& key : keys) {
      all = all && exists(key);
    }
    if (all) {
      return false;
    }
    Wait& wait = waits_[id];
    for (const std::string& key : keys) {
      if (waiters_[key].insert(id).second) {
        ++wait.different;
        wait.missing += exists(key) ? 0 : 1;
      }
    }
    keys_of_[id.session] += keys.size();
    wait.kind = kind;
    wait.keys = std::move(keys);
    wait.since = now;
    wait.readers = readers;
    return true;
  }

  /// A key was added: the waits that lacked only this key end, in the order of sessions and requests.
  void on_added(const std::string& key, std::vector<Released>& released) {
    const auto place = waiters_.find(key);
    if (place == waiters_.end()) {
      return;
    }
    const std::set<RequestKey> waiters = place->second;  // ending a wait changes it
    for (const RequestKey id : waiters) {
      const auto found = waits_.find(id);
      if (--found->second.missing == 0) {
        released.push_back({id, found->second.kind, found->second.keys, found->second.readers});
        end(found);
      }
    }
  }

  void on_erased(const std::string& key) {
    const auto place = waiters_.find(key);
    if (place != waiters_.end()) {
      for (const RequestKey id : place->second) {
        ++waits_.at(id).missing;
      }
    }
  }

  /// Removes a wait; nullopt if there is none (any more).
  template <class Exists>
  std::optional<Cancelled> cancel(RequestKey id, const Exists& exists) {
    const auto found = waits_.find(id);
    if (found == waits_.end()) {
      return std::nullopt;
    }
    Cancelled result{{}, found->second.different, found->second.since};
    std::set<std::string> seen;
    for (const std::string& key : found->second.keys) {
      if (!exists(key) && seen.insert(key).second) {
        result.missing.push_back(key);
      }
    }
    end(found);
    return result;
  }

  /// Removes all waits of a session.
  void forget(std::uint64_t session) {
    for (auto it = waits_.lower_bound({session, 0}); it != waits_.end() && it->first.session == session;) {
      end(it++);
    }
  }

  /// Number of keys in all waits of a session, existing and repeated ones included: a measure of their memory.
  std::size_t keys_of(std::uint64_t session) const {
    const auto found = keys_of_.find(session);
    return found == keys_of_.end() ? 0 : found->second;
  }

  /// The first missing key of a session's oldest wait; nullopt if it has no wait.
  template <class Exists>
  std::optional<std::string> lacked_by(std::uint64_t session, const Exists& exists) const {
    const auto found = waits_.lower_bound({session, 0});
    if (found == waits_.end() || found->first.session != session) {
      return std::nullopt;
    }
    for (const std::string& key : found->second.keys) {
      if (!exists(key)) {
        return key;
      }
    }
    return std::nullopt;
  }

  std::size_t size() const noexcept { return waits_.size(); }

 private:
  struct Wait {
    RequestKind kind = RequestKind::wait;
    std::vector<std::string> keys;
    std::size_t different = 0;
    std::size_t missing = 0;  ///< number of different keys that do not exist
    Instant since;
    std::int64_t readers = 0;
  };

  void end(std::map<RequestKey, Wait>::iterator wait) {
    const RequestKey id = wait->first;
    for (const std::string& key : wait->second.keys) {
      const auto place = waiters_.find(key);
      if (place != waiters_.end() && place->second.erase(id) > 0 && place->second.empty()) {
        waiters_.erase(place);
      }
    }
    const auto count = keys_of_.find(id.session);
    count->second -= wait->second.keys.size();
    if (count->second == 0) {
      keys_of_.erase(count);
    }
    waits_.erase(wait);
  }

  std::map<RequestKey, Wait> waits_;
  std::unordered_map<std::string, std::set<RequestKey>> waiters_;  ///< for each key, the requests that wait for it
  std::unordered_map<std::uint64_t, std::size_t> keys_of_;         ///< for each session, the sum of `keys`
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
