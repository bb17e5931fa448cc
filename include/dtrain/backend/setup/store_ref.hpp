#pragma once
/// @file
/// StoreRef: type-erased key-value store, used to open channels.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A store whose set and get return a waitable call, as those of rendezvous::Store. Backends need no more, so their
/// tests need no server.
template <class S>
concept KeyValueStore = std::copyable<S> &&
    requires(S store, const std::string& key, std::string value, Deadline deadline) {
  store.set(key, value, deadline).wait();
  { store.get(key, deadline).wait() } -> std::convertible_to<std::string>;
};

/// Copyable handle on a store of any type. Threads: as the store's. A store without take or erase keeps its keys.
class StoreRef {
 public:
  template <class Store>
  requires(!std::same_as<Store, StoreRef> && KeyValueStore<Store>)
      StoreRef(Store store) {  // NOLINT(google-explicit-constructor): accepts any store
    const auto shared = std::make_shared<Store>(std::move(store));
    set_ = [shared](const std::string& key, const std::string& value, Deadline deadline) {
      shared->set(key, value, deadline).wait();
    };
    get_ = [shared](const std::string& key, Deadline deadline) -> std::string {
      return shared->get(key, deadline).wait();
    };
    if constexpr (requires(const std::string& key, Deadline deadline) { shared->take(key, 1, deadline).wait(); }) {
      take_ = [shared](const std::string& key, std::int64_t readers, Deadline deadline) -> std::string {
        return shared->take(key, readers, deadline).wait();
      };
    }
    if constexpr (requires(const std::string& key, Deadline deadline) { shared->try_get(key, deadline).wait(); }) {
      has_ = [shared](const std::string& key, Deadline deadline) {
        return shared->try_get(key, deadline).wait().has_value();
      };
    }
    if constexpr (requires(const std::string& key, Deadline deadline) { shared->add(key, 1, deadline).wait(); }) {
      add_ = [shared](const std::string& key, std::int64_t delta, Deadline deadline) -> std::int64_t {
        return shared->add(key, delta, deadline).wait();
      };
    }
    if constexpr (requires(const std::string& key, Deadline deadline) { shared->erase(key, deadline).wait(); }) {
      erase_ = [shared](const std::string& key, Deadline deadline) {
        static_cast<void>(shared->erase(key, deadline).wait());
      };
    }
  }

  /// Blocking: until the value is in the store. @throws Error (timeout), JobFailed
  void set_blocking(const std::string& key, const std::string& value, Deadline deadline) const {
    set_(key, value, deadline);
  }

  /// Blocking: until some rank has set the key. @throws Error (timeout), JobFailed
  std::string get_blocking(const std::string& key, Deadline deadline) const { return get_(key, deadline); }

  /// Blocking: as get_blocking. The store erases the key after `readers` takes.
  std::string take_blocking(const std::string& key, std::int64_t readers, Deadline deadline) const {
    return take_ ? take_(key, readers, deadline) : get_(key, deadline);
  }

  /// Blocking: whether the key exists; true if the store has no try_get. @throws Error (timeout), JobFailed
  bool has_blocking(const std::string& key, Deadline deadline) const { return !has_ || has_(key, deadline); }

  /// Blocking: adds to the integer under the key. @returns the sum; 0 if the store has no add
  std::int64_t add_blocking(const std::string& key, std::int64_t delta, Deadline deadline) const {
    return add_ ? add_(key, delta, deadline) : 0;
  }

  /// Blocking: until the key is erased, if it existed. @throws Error (timeout), JobFailed
  void erase_blocking(const std::string& key, Deadline deadline) const {
    if (erase_) {
      erase_(key, deadline);
    }
  }

 private:
  std::function<void(const std::string&, const std::string&, Deadline)> set_;
  std::function<std::string(const std::string&, Deadline)> get_;
  std::function<std::string(const std::string&, std::int64_t, Deadline)> take_;
  std::function<bool(const std::string&, Deadline)> has_;
  std::function<std::int64_t(const std::string&, std::int64_t, Deadline)> add_;
  std::function<void(const std::string&, Deadline)> erase_;
};

}  // namespace DTRAIN_NAMESPACE::backend
