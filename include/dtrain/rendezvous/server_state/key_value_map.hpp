#pragma once
/// @file
/// KeyValueMap of a RequestHandler: a store's keys and values, and requests that wait for keys. Pure.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/server_state/rank_table.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A change succeeds wholly, or changes nothing and returns the sentence of a rejection. Changes that add keys also
/// return the waits that they end (`released`). A wait ends when all its keys exist at once: if a is set and erased
/// before b is set, a wait for both continues.
class KeyValueMap {
 public:
  using Refusal = std::optional<std::string>;
  using Instant = Deadline::Clock::time_point;

  /// A wait that ended because all its keys exist.
  struct Released {
    RequestKey id;
    RequestKind kind = RequestKind::wait;
    std::vector<std::string> keys;
    std::int64_t readers = 0;  ///< the readers of a take
  };

  /// A wait that was cancelled.
  struct Cancelled {
    std::vector<std::string> missing;  ///< each once, in the order of the request
    std::size_t keys = 0;              ///< number of different keys
    Instant since;
  };

  /// The sum of add, or append's length in bytes.
  struct Count {
    std::int64_t value = 0;
    Refusal refusal;
  };

  explicit KeyValueMap(const Limits& limits) : limits_(limits) {}

  const std::string* find(const std::string& key) const { return shared(key).get(); }
  /// The value, shared with responses that outlive it here; null if the key does not exist.
  SharedValue shared(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : found->second.text;
  }

  /// Sets or replaces a value, and releases the waits for the key.
  Refusal set(const std::string& key, std::string value, std::vector<Released>& released) {
    const std::string* old = find(key);
    Refusal refusal =
        refuse(old == nullptr ? 1 : 0, old == nullptr ? 0 : key.size() + old->size(), key.size() + value.size());
    if (!refusal) {
      store(key, std::move(value), released);
    }
    return refusal;
  }

  /// Sets or replaces all values, or none; if a key occurs twice, its last value counts. @pre as many values as keys
  Refusal set_many(const std::vector<std::string>& keys, std::vector<std::string> values,
                   std::vector<Released>& released) {
    std::map<std::string, std::size_t> last;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      last.emplace(keys[i], i).first->second = i;
    }
    std::size_t added = 0;
    std::size_t freed = 0;
    std::size_t taken = 0;
    for (const auto& [key, place] : last) {
      const std::string* old = find(key);
      added += old == nullptr ? 1 : 0;
      freed += old == nullptr ? 0 : key.size() + old->size();
      taken += key.size() + values[place].size();
    }
    Refusal refusal = refuse(added, freed, taken);
    if (!refusal) {
      for (const auto& [key, place] : last) {
        store(key, std::move(values[place]), released);
      }
    }
    return refusal;
  }

  /// Adds to the decimal integer that the key holds; a missing key counts as 0.
  Count add(const std::string& key, std::int64_t delta, std::vector<Released>& released) {
    std::int64_t present = 0;
    if (const std::string* text = find(key)) {
      const char* end = text->data() + text->size();
      const auto [stop, error] = std::from_chars(text->data(), end, present);
      if (error != std::errc() || stop != end) {
        return {0, "it holds no integer; add works on a value that is a decimal number"};
      }
    }
    Count sum;
    if (__builtin_add_overflow(present, delta, &sum.value)) {
      return {0, "the sum does not fit into 64 bits"};
    }
    sum.refusal = set(key, std::to_string(sum.value), released);
    return sum;
  }

  /// Appends to the value; a missing key counts as empty.
  Count append(const std::string& key, const std::string& text, std::vector<Released>& released) {
    const std::string* old = find(key);
    if (old == nullptr) {
      return {static_cast<std::int64_t>(text.size()), set(key, text, released)};
    }
    const std::size_t length = old->size() + text.size();
    if (length > max_value_bytes) {
      return {0, format_text("the value would have {} bytes; at most {} are possible{}",
                             {length, max_value_bytes, large_value_remedy})};
    }
    Count count{static_cast<std::int64_t>(length), refuse(0, 0, text.size())};
    if (!count.refusal) {
      std::shared_ptr<std::string>& value = values_.at(key).text;
      if (value.use_count() > 1) {  // responses share the old value
        value = std::make_shared<std::string>(*value);
      }
      *value += text;
      bytes_ += text.size();
    }
    return count;
  }

  /// Removes the key; waits for it continue. @returns whether it existed
  bool erase(const std::string& key) {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      return false;
    }
    bytes_ -= key.size() + found->second.text->size();
    values_.erase(found);
    if (const auto place = waiters_.find(key); place != waiters_.end()) {
      for (const RequestKey id : place->second) {
        ++waits_.at(id).missing;
      }
    }
    return true;
  }

  /// Counts an answered take; the `readers`-th erases the key. No effect if the key is gone.
  void take(const std::string& key, std::int64_t readers) {
    const auto found = values_.find(key);
    if (found != values_.end() && ++found->second.takes >= readers) {
      erase(key);
    }
  }

  /// Registers a wait. @returns false, without a wait, if all keys exist
  /// @param keys at least one; repeated keys count once
  bool wait(RequestKey id, RequestKind kind, std::vector<std::string> keys, Instant now, std::int64_t readers = 0) {
    if (std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return values_.contains(key); })) {
      return false;
    }
    Wait& wait = waits_[id];
    for (const std::string& key : keys) {
      if (waiters_[key].insert(id).second) {
        ++wait.different;
        wait.missing += values_.contains(key) ? 0 : 1;
      }
    }
    wait.kind = kind;
    wait.keys = std::move(keys);
    wait.since = now;
    wait.readers = readers;
    return true;
  }

  /// Removes a wait; nullopt if there is none (any more).
  std::optional<Cancelled> cancel(RequestKey id) {
    const auto found = waits_.find(id);
    if (found == waits_.end()) {
      return std::nullopt;
    }
    Cancelled result{{}, found->second.different, found->second.since};
    std::set<std::string> seen;
    for (const std::string& key : found->second.keys) {
      if (!values_.contains(key) && seen.insert(key).second) {
        result.missing.push_back(key);
      }
    }
    end(found);
    return result;
  }

  /// Removes all waits of a session.
  void forget(SessionId session) {
    for (auto [at, last] = requests_of(waits_, session); at != last;) {
      end(at++);
    }
  }

  /// Number of keys in all waits of a session, existing and repeated ones included: a measure of their memory.
  std::size_t waited_keys(SessionId session) const {
    std::size_t keys = 0;
    for (auto [at, last] = requests_of(waits_, session); at != last; ++at) {
      keys += at->second.keys.size();
    }
    return keys;
  }

  /// The first missing key of a session's oldest wait; nullopt if it has no wait.
  std::optional<std::string> lacked_by(SessionId session) const {
    const auto [oldest, last] = requests_of(waits_, session);
    if (oldest != last) {
      for (const std::string& key : oldest->second.keys) {
        if (!values_.contains(key)) return key;
      }
    }
    return std::nullopt;
  }

  std::size_t waits() const noexcept { return waits_.size(); }
  std::size_t size() const noexcept { return values_.size(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct Value {
    std::shared_ptr<std::string> text;
    std::int64_t takes = 0;  ///< number of takes since it was set
  };
  struct Wait {
    RequestKind kind = RequestKind::wait;
    std::vector<std::string> keys;
    std::size_t different = 0;
    std::size_t missing = 0;  ///< number of different keys that do not exist
    Instant since;
    std::int64_t readers = 0;
  };

  /// The rejection, if any, of `added` more keys, and of `taken` bytes in the place of `freed` ones.
  Refusal refuse(std::size_t added, std::size_t freed, std::size_t taken) const {
    if (values_.size() + added > limits_.keys && added > 0) {
      return format_text("the store holds {} keys, its limit is {}; erase keys or use them again",
                         {values_.size(), limits_.keys});
    }
    if (bytes_ - freed + taken > limits_.store_bytes) {
      return format_text("the store would exceed {} bytes, its limit; store less", {limits_.store_bytes});
    }
    return std::nullopt;
  }

  void store(const std::string& key, std::string value, std::vector<Released>& released) {
    auto shared = std::make_shared<std::string>(std::move(value));
    const auto [place, is_new] = values_.try_emplace(key);
    bytes_ += shared->size() + (is_new ? key.size() : 0) - (is_new ? 0 : place->second.text->size());
    place->second = Value{std::move(shared), 0};
    if (is_new) {
      release(key, released);
    }
  }

  /// A key was added: the waits that lacked only this key end, in the order of sessions and requests.
  void release(const std::string& key, std::vector<Released>& released) {
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

  void end(std::map<RequestKey, Wait>::iterator wait) {
    for (const std::string& key : wait->second.keys) {
      const auto place = waiters_.find(key);
      if (place != waiters_.end() && place->second.erase(wait->first) > 0 && place->second.empty()) {
        waiters_.erase(place);
      }
    }
    waits_.erase(wait);
  }

  Limits limits_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, Value> values_;
  std::map<RequestKey, Wait> waits_;
  std::unordered_map<std::string, std::set<RequestKey>> waiters_;  ///< the requests that wait for each key
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
