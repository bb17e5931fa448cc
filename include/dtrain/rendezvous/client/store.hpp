#pragma once
/// @file
/// rendezvous::Store: handle of a job's key-value store and barriers.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/client/store_call.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/request.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Copies of a Store refer to the same session, and may outlive it; their calls then throw. Bounds: a key or barrier
/// name has at most max_key_bytes with its prefix (with_prefix), a value max_value_bytes, all keys and values of one
/// call max_batch_bytes. Each call is one request and one response, and takes effect wholly or not at all.
///
/// An operation returns a StoreCall, which sends nothing by itself. In a coroutine on the rank's control loop
/// (ProcessGroup::run, ::spawn), write `co_await store.get("key")`. On any other thread, `store.get("key").wait()`
/// blocks. Both take until the deadline at most (timeout() from now if none is given), and a second more for the
/// store's last response. Threads: any, several at once.
/// @throws Error (timeout) that names the key or barrier; the job's first cause (PeerLost, JobFailed) from every
/// pending and later call; Error (refused) with the store's sentence; Error (invalid_argument) if a bound is exceeded;
/// Error (limit) if too many bytes wait to be sent; Error (closed) after the session
class Store {
 public:
  using OptionalDeadline = std::optional<Deadline>;

  Store(std::weak_ptr<StoreClient> client, std::shared_ptr<LoopHandle> loop_handle);

  /// The same store, with `prefix` before every key, after the prefix of this handle.
  Store with_prefix(const std::string& prefix) const;
  const std::string& prefix() const noexcept { return prefix_; }

  /// The same store, with this timeout for calls without a deadline. ProcessGroup::store() has the group's timeout.
  Store with_timeout(std::chrono::nanoseconds timeout) const;
  std::chrono::nanoseconds timeout() const noexcept { return timeout_; }

  /// The same store, with barriers among these ranks of the job instead of all.
  Store with_barrier_ranks(std::shared_ptr<const RankSet> ranks) const;

  /// Sets or replaces a value.
  StoreCall<void> set(std::string key, std::string value, OptionalDeadline deadline = {}) const;

  /// Sets or replaces all values, or none. If a key occurs twice, its last value counts.
  StoreCall<void> set_many(std::vector<std::pair<std::string, std::string>> entries,
                           OptionalDeadline deadline = {}) const;

  /// Sets the key to `desired` if it has the value `expected`; nullopt as `expected` means that the key must not exist.
  StoreCall<CompareSet> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                                    OptionalDeadline deadline = {}) const;

  /// The value; waits until some rank has set it.
  StoreCall<std::string> get(std::string key, OptionalDeadline deadline = {}) const;

  /// As get; the store erases the key after `readers` takes, so that a value for that many readers leaves no key
  /// behind. Each call counts once; a call that timed out may have counted.
  StoreCall<std::string> take(std::string key, std::int64_t readers, OptionalDeadline deadline = {}) const;

  /// The values in the order of the keys; waits until all exist at once. At most max_keys_per_wait keys.
  StoreCall<std::vector<std::string>> get_many(std::vector<std::string> keys, OptionalDeadline deadline = {}) const;

  /// The value, or nothing if the key does not exist.
  StoreCall<std::optional<std::string>> try_get(std::string key, OptionalDeadline deadline = {}) const;

  /// Removes the key, and returns whether it existed. Waits for the key continue.
  StoreCall<bool> erase(std::string key, OptionalDeadline deadline = {}) const;

  /// Adds to the decimal integer under the key (a missing key counts as 0) and returns the sum. Each call counts once;
  /// a call that timed out may have counted.
  StoreCall<std::int64_t> add(std::string key, std::int64_t delta, OptionalDeadline deadline = {}) const;

  /// Appends to the value (a missing key counts as empty) and returns its new length in bytes.
  StoreCall<std::int64_t> append(std::string key, std::string text, OptionalDeadline deadline = {}) const;

  /// Waits until all keys exist at once; at most max_keys_per_wait.
  StoreCall<void> wait(std::vector<std::string> keys, OptionalDeadline deadline = {}) const;

  /// Collective: waits until every rank of the job (or of with_barrier_ranks) has reached the barrier of this name;
  /// then the name may be used again. A rank may wait in a barrier of one name only once at a time.
  StoreCall<void> barrier(std::string name, OptionalDeadline deadline = {}) const;

 private:
  StoreRequest make_request(RequestKind kind, const OptionalDeadline& deadline) const;
  StoreRequest make_request(RequestKind kind, const std::string& key, const OptionalDeadline& deadline) const;
  StoreRequest make_request(RequestKind kind, const std::vector<std::string>& keys,
                            const OptionalDeadline& deadline) const;

  std::weak_ptr<StoreClient> client_;
  std::shared_ptr<LoopHandle> loop_handle_;
  std::string prefix_;
  std::shared_ptr<const RankSet> barrier_ranks_;  ///< null: all ranks of the job
  std::chrono::nanoseconds timeout_ = std::chrono::seconds(600);
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS
#include "dtrain/rendezvous/client/store_definitions.hpp"
#endif
