#pragma once
/// @file
/// The keys and values of a job, and who waits for which of them: a pure state machine.

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Names a request that awaits its answer: the session, and the number that the session gave the request.
struct RequestKey {
  std::uint64_t session = 0;
  std::uint64_t request = 0;

  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

class KeySpace {
 public:
  /// A wait that ended because its last key came to be.
  struct Released {
    RequestKey who;
    std::optional<std::string> value;  ///< where it asked for the value
  };

  /// What add did: the sum, or the sentence of the refusal.
  struct Sum {
    std::int64_t value = 0;
    std::optional<std::string> refusal;
  };

  explicit KeySpace(const Limits& limits) : limits_(limits) {}

  const std::string* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }

  /// Sets or replaces a value and releases those who waited for the key. @returns the sentence of a refusal
  std::optional<std::string> set(const std::string& key, std::string value, std::vector<Released>& released) {
    const auto found = values_.find(key);
    const bool is_new = found == values_.end();
    const std::size_t freed = is_new ? 0 : key.size() + found->second.size();
    if (is_new && values_.size() >= limits_.keys) {
      return "the store holds " + std::to_string(limits_.keys) + " keys, its limit; reuse keys";
    }
    if (bytes_ - freed + key.size() + value.size() > limits_.store_bytes) {
      return "the store would exceed " + std::to_string(limits_.store_bytes) + " bytes, its limit; store less";
    }
    bytes_ = bytes_ - freed + key.size() + value.size();
    values_[key] = std::move(value);
    if (is_new) {
      release(key, released);
    }
    return std::nullopt;
  }

  /// Adds to the decimal integer that the key holds; a missing key counts as 0.
  Sum add(const std::string& key, std::int64_t delta, std::vector<Released>& released) {
    std::int64_t present = 0;
    if (const std::string* text = find(key)) {
      const char* end = text->data() + text->size();
      const auto [stop, error] = std::from_chars(text->data(), end, present);
      if (error != std::errc() || stop != end) {
        return {0, "it holds no integer; add works on keys that add alone has written"};
      }
    }
    Sum sum;
    if (__builtin_add_overflow(present, delta, &sum.value)) {
      return {0, "the sum does not fit into 64 bits"};
    }
    sum.refusal = set(key, std::to_string(sum.value), released);
    return sum;
  }

  /// Registers a wait for all of `keys`. @returns whether they all exist already: then nothing is registered
  /// @param wants_value the answer carries the value of the only key
  bool wait(RequestKey who, const std::vector<std::string>& keys, bool wants_value) {
    Wait wait{{}, wants_value};
    for (const std::string& key : keys) {
      if (find(key) == nullptr) {
        wait.missing.insert(key);
      }
    }
    if (wait.missing.empty()) {
      return true;
    }
    for (const std::string& key : wait.missing) {
      waiting_[key].insert(who);
    }
    waits_.emplace(who, std::move(wait));
    return false;
  }

  /// Takes a wait back. @returns the keys that are missing still; nothing if there is no such wait (any more)
  std::optional<std::vector<std::string>> cancel(RequestKey who) {
    const auto found = waits_.find(who);
    if (found == waits_.end()) {
      return std::nullopt;
    }
    std::vector<std::string> missing(found->second.missing.begin(), found->second.missing.end());
    for (const std::string& key : missing) {
      const auto place = waiting_.find(key);
      place->second.erase(who);
      if (place->second.empty()) {
        waiting_.erase(place);
      }
    }
    waits_.erase(found);
    return missing;
  }

  /// How many keys the waits of a session have not yet seen, and the first of them.
  std::pair<std::size_t, std::string> waited_by(std::uint64_t session) const {
    std::pair<std::size_t, std::string> result;
    for (auto it = waits_.lower_bound({session, 0}); it != waits_.end() && it->first.session == session; ++it) {
      if (result.first == 0) {
        result.second = *it->second.missing.begin();
      }
      result.first += it->second.missing.size();
    }
    return result;
  }

  /// Takes back all waits of a session.
  void forget(std::uint64_t session) {
    for (auto it = waits_.lower_bound({session, 0}); it != waits_.end() && it->first.session == session;) {
      const RequestKey who = (it++)->first;
      cancel(who);
    }
  }

  std::size_t size() const noexcept { return values_.size(); }
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t waits() const noexcept { return waits_.size(); }

 private:
  struct Wait {
    std::set<std::string> missing;
    bool wants_value = false;
  };

  void release(const std::string& key, std::vector<Released>& released) {
    const auto place = waiting_.find(key);
    if (place == waiting_.end()) {
      return;
    }
    const std::set<RequestKey> waiters = std::move(place->second);
    waiting_.erase(place);
    for (const RequestKey who : waiters) {
      const auto found = waits_.find(who);
      found->second.missing.erase(key);
      if (found->second.missing.empty()) {
        released.push_back({who, std::nullopt});
        if (found->second.wants_value) {
          released.back().value = values_.at(key);
        }
        waits_.erase(found);
      }
    }
  }

  Limits limits_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, std::string> values_;
  std::map<RequestKey, Wait> waits_;
  std::unordered_map<std::string, std::set<RequestKey>> waiting_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
