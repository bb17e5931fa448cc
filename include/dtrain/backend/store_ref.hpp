#pragma once
/// @file
/// StoreRef: type-erased key-value store of a job, by which a backend's ranks share values.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Makes a text that ranks exchange over a store.
using MakeText = std::function<std::string()>;

/// Makes one text of the texts of all ranks, which are in rank order.
using CombineTexts = std::function<std::string(const std::vector<std::string>& texts)>;

/// A store whose set and get return a waitable call, as those of rendezvous::Store. Tests of backends therefore need no
/// server.
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
      StoreRef(Store store);  // NOLINT(google-explicit-constructor): accepts any store

  /// The same store, whose calls are for this purpose: what error sentences say of them in place of their keys. The
  /// same as before for a store whose calls have none.
  StoreRef with_purpose(const std::string& purpose) const { return StoreRef(calls_->with_purpose(purpose)); }

  /// Blocking: until the value is in the store. @throws Error (timeout), JobFailed
  void set_blocking(const std::string& key, const std::string& value, Deadline deadline) const {
    calls_->set(key, value, deadline);
  }

  /// Blocking: until some rank has set the key. @throws Error (timeout), JobFailed
  std::string get_blocking(const std::string& key, Deadline deadline) const { return calls_->get(key, deadline); }

  /// Blocking: as get_blocking. The store erases the key after `readers` takes.
  std::string take_blocking(const std::string& key, std::int64_t readers, Deadline deadline) const {
    return calls_->take(key, readers, deadline);
  }

  /// Blocking: whether the key exists; true if the store has no try_get. @throws Error (timeout), JobFailed
  bool has_blocking(const std::string& key, Deadline deadline) const { return calls_->has(key, deadline); }

  /// Blocking: adds to the integer under the key. @returns the sum; 0 if the store has no add
  std::int64_t add_blocking(const std::string& key, std::int64_t delta, Deadline deadline) const {
    return calls_->add(key, delta, deadline);
  }

  /// Blocking: until the key is erased, if it existed. @throws Error (timeout), JobFailed
  void erase_blocking(const std::string& key, Deadline deadline) const { calls_->erase(key, deadline); }

 private:
  struct Calls {
    Calls() = default;
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;
    virtual ~Calls() = default;
    virtual std::shared_ptr<Calls> with_purpose(const std::string& purpose) = 0;
    virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
    virtual std::string get(const std::string& key, Deadline deadline) = 0;
    virtual std::string take(const std::string& key, std::int64_t readers, Deadline deadline) = 0;
    virtual bool has(const std::string& key, Deadline deadline) = 0;
    virtual std::int64_t add(const std::string& key, std::int64_t delta, Deadline deadline) = 0;
    virtual void erase(const std::string& key, Deadline deadline) = 0;
  };

  template <class Store>
  struct CallsOf final : Calls {
    explicit CallsOf(Store&& given) : store(std::move(given)) {}
    std::shared_ptr<Calls> with_purpose([[maybe_unused]] const std::string& purpose) override {
      if constexpr (requires { with_call_purpose(store, purpose); }) {
        return std::make_shared<CallsOf>(with_call_purpose(store, purpose));
      } else {
        return std::make_shared<CallsOf>(Store(store));
      }
    }
    void set(const std::string& key, const std::string& value, Deadline deadline) override {
      store.set(key, value, deadline).wait();
    }
    std::string get(const std::string& key, Deadline deadline) override { return store.get(key, deadline).wait(); }
    std::string take(const std::string& key, std::int64_t readers, Deadline deadline) override {
      if constexpr (requires { store.take(key, readers, deadline).wait(); }) {
        return store.take(key, readers, deadline).wait();
      } else {
        return get(key, deadline);
      }
    }
    bool has(const std::string& key, Deadline deadline) override {
      if constexpr (requires { store.try_get(key, deadline).wait(); }) {
        return store.try_get(key, deadline).wait().has_value();
      } else {
        return true;
      }
    }
    std::int64_t add(const std::string& key, std::int64_t delta, Deadline deadline) override {
      if constexpr (requires { store.add(key, delta, deadline).wait(); }) {
        return store.add(key, delta, deadline).wait();
      } else {
        return 0;
      }
    }
    void erase(const std::string& key, Deadline deadline) override {
      if constexpr (requires { store.erase(key, deadline).wait(); }) {
        static_cast<void>(store.erase(key, deadline).wait());
      }
    }
    Store store;
  };

  explicit StoreRef(std::shared_ptr<Calls> calls) noexcept : calls_(std::move(calls)) {}

  std::shared_ptr<Calls> calls_;
};

// Defined apart from the class, so that what is instantiated with the definitions is not instantiated again.
template <class Store>
requires(!std::same_as<Store, StoreRef> && KeyValueStore<Store>) StoreRef::StoreRef(Store store)
    : calls_(std::make_shared<CallsOf<Store>>(std::move(store))) {}

}  // namespace DTRAIN_NAMESPACE::backend
