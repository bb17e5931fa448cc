#pragma once
/// @file
/// rendezvous::Store: the keys and barriers of a job, as a rank uses them.

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

/// A handle: copies refer to the same session, and may outlive it; their calls then throw. Keys and names of barriers
/// are prefixed (with_prefix), have at most max_key_bytes with their prefix, and values at most max_value_bytes; all
/// keys and values of one call have at most max_batch_bytes. Each call is one message there and one back, whole or not
/// at all.
///
/// An operation gives a StoreCall, which does nothing by itself: `co_await store.get("key")` in a coroutine on the
/// rank's control loop (ProcessGroup::run, ::spawn), `store.get("key").wait()` on any other thread, where it
/// blocks. Both take until the deadline, or timeout() where none is given, or a moment longer (a second at most) for
/// the store's last word. Threads: any, several at once.
/// @throws Error (timeout) that names the key or barrier; the job's first cause (PeerLost, JobFailed) from every
/// pending and later call; Error (refused) with the store's sentence; Error (invalid_argument) for what is too long;
/// Error (closed) after the session
class Store {
 public:
  using OptionalDeadline = std::optional<Deadline>;

  Store(std::weak_ptr<StoreClient> client, std::shared_ptr<LoopHandle> loop_handle)
      : client_(std::move(client)), loop_handle_(std::move(loop_handle)) {}

  /// The same store, with `prefix` before every key, after the prefix of this handle.
  Store with_prefix(const std::string& prefix) const {
    Store store = *this;
    store.prefix_ += prefix;
    return store;
  }
  const std::string& prefix() const noexcept { return prefix_; }

  /// The same store, whose calls without a deadline take so long at most. ProcessGroup::store() has the group's.
  Store with_timeout(std::chrono::nanoseconds timeout) const {
    Store store = *this;
    store.timeout_ = timeout;
    return store;
  }
  std::chrono::nanoseconds timeout() const noexcept { return timeout_; }

  /// The same store, whose barriers are of these ranks of the job, not of all.
  Store with_barrier_ranks(std::shared_ptr<const RankSet> ranks) const {
    Store store = *this;
    store.barrier_ranks_ = std::move(ranks);
    return store;
  }

  /// Sets or replaces a value.
  StoreCall<void> set(std::string key, std::string value, OptionalDeadline deadline = {}) const;

  /// Sets or replaces all of these values, or none of them. Of a key that is there twice the last value counts.
  StoreCall<void> set_many(std::vector<std::pair<std::string, std::string>> entries,
                           OptionalDeadline deadline = {}) const;

  /// Sets the key to `desired` if it has the value `expected`; nothing for `expected` means that it must not exist.
  StoreCall<CompareSet> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                                    OptionalDeadline deadline = {}) const;

  /// The value; waits until some rank has set it.
  StoreCall<std::string> get(std::string key, OptionalDeadline deadline = {}) const;

  /// As get; the key is erased once it was taken `readers` times: what each of so many ranks reads once leaves nothing
  /// behind. Each call counts once; one that timed out may have counted.
  StoreCall<std::string> take(std::string key, std::int64_t readers, OptionalDeadline deadline = {}) const;

  /// The values in the order of the keys; waits until all exist at once. At most max_keys_per_wait keys.
  StoreCall<std::vector<std::string>> get_many(std::vector<std::string> keys, OptionalDeadline deadline = {}) const;

  /// The value, or nothing where there is none yet.
  StoreCall<std::optional<std::string>> try_get(std::string key, OptionalDeadline deadline = {}) const;

  /// Removes the key; who waits for it goes on waiting. Whether it existed.
  StoreCall<bool> erase(std::string key, OptionalDeadline deadline = {}) const;

  /// Adds to the decimal integer under the key (none counts as 0) and gives the sum. Each call counts once; one that
  /// timed out may have counted.
  StoreCall<std::int64_t> add(std::string key, std::int64_t delta, OptionalDeadline deadline = {}) const;

  /// Appends to the value (none counts as empty) and gives its new length in bytes.
  StoreCall<std::int64_t> append(std::string key, std::string text, OptionalDeadline deadline = {}) const;

  /// Waits until all keys exist at once; at most max_keys_per_wait.
  StoreCall<void> wait(std::vector<std::string> keys, OptionalDeadline deadline = {}) const;

  /// Collective: waits until every rank of the job (or all members) has come to the barrier of this name; then the name
  /// is free for the next round. A rank is in a barrier of one name once at a time.
  StoreCall<void> barrier(std::string name, OptionalDeadline deadline = {}) const;

 private:
  Request make_request(RequestKind kind, std::string key) const;
  Request make_request_of_many(RequestKind kind, std::vector<std::string> keys) const;
  Request make_request_with_value(RequestKind kind, std::string key, std::string value) const;
  StoreRequest send_request(Request request, const OptionalDeadline& deadline) const;

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
