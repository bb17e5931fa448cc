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

#include "dtrain/async/task.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/rank_set.hpp"
#include "dtrain/rendezvous/request.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

class Control;
class Exchange;

/// What compare_set found and did.
struct CompareSet {
  bool swapped = false;
  std::optional<std::string> now{};  ///< the key's value afterwards; nothing where it does not exist
};

/// A handle: copies refer to the same session, and may outlive it; their calls then throw. Keys and names of barriers
/// are prefixed (with_prefix), have at most max_key_bytes with their prefix, and values at most max_value_bytes; all
/// keys and values of one call have at most max_batch_bytes. Each call is one message there and one back, whole or not
/// at all.
///
/// Blocking: the coroutine forms suspend, on the rank's control loop (ProcessGroup::run_blocking, ::spawn); the
/// ..._blocking forms block the calling thread, which is not the loop's. All until the deadline, or for timeout() where
/// none is given, or a moment longer (a second at most) for the store's last word. A Task that is destroyed takes its
/// request back. Threads: the coroutine forms on the loop; the others from any thread, several at once.
/// @throws Error (timeout) that names the key or barrier; the job's first cause (PeerLost, JobFailed) from every
/// pending and later call; Error (refused) with the store's sentence; Error (invalid_argument) for what is too long;
/// Error (closed) after the session
class Store {
 public:
  using OptionalDeadline = std::optional<Deadline>;
  template <class T>
  using Task = async::Task<T>;

  Store(std::weak_ptr<Exchange> exchange, std::shared_ptr<Control> control)
      : exchange_(std::move(exchange)), control_(std::move(control)) {}

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
  Store with_parties(std::shared_ptr<const RankSet> ranks) const {
    Store store = *this;
    store.parties_ = std::move(ranks);
    return store;
  }

  /// Sets or replaces a value.
  Task<void> set(std::string key, std::string value, OptionalDeadline deadline = {}) const;
  void set_blocking(const std::string& key, const std::string& value, OptionalDeadline deadline = {}) const;

  /// Sets or replaces all of these values, or none of them. Of a key that is there twice the last value counts.
  Task<void> set_many(std::vector<std::pair<std::string, std::string>> entries, OptionalDeadline deadline = {}) const;
  void set_many_blocking(const std::vector<std::pair<std::string, std::string>>& entries,
                         OptionalDeadline deadline = {}) const;

  /// Sets the key to `desired` if it has the value `expected`; nothing for `expected` means that it must not exist.
  Task<CompareSet> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                               OptionalDeadline deadline = {}) const;
  CompareSet compare_set_blocking(const std::string& key, const std::optional<std::string>& expected,
                                  const std::string& desired, OptionalDeadline deadline = {}) const;

  /// The value; waits until some rank has set it.
  Task<std::string> get(std::string key, OptionalDeadline deadline = {}) const;
  std::string get_blocking(const std::string& key, OptionalDeadline deadline = {}) const;

  /// As get; the key is erased once it was taken `readers` times: what each of so many ranks reads once leaves nothing
  /// behind. Each call counts once; one that timed out may have counted.
  Task<std::string> take(std::string key, std::int64_t readers, OptionalDeadline deadline = {}) const;
  std::string take_blocking(const std::string& key, std::int64_t readers, OptionalDeadline deadline = {}) const;

  /// The values in the order of the keys; waits until all exist at once. At most max_keys_of_a_wait keys.
  Task<std::vector<std::string>> get_many(std::vector<std::string> keys, OptionalDeadline deadline = {}) const;
  std::vector<std::string> get_many_blocking(const std::vector<std::string>& keys,
                                             OptionalDeadline deadline = {}) const;

  /// The value, or nothing where there is none yet.
  Task<std::optional<std::string>> try_get(std::string key, OptionalDeadline deadline = {}) const;
  std::optional<std::string> try_get_blocking(const std::string& key, OptionalDeadline deadline = {}) const;

  /// Removes the key; who waits for it goes on waiting. Whether it existed.
  Task<bool> erase(std::string key, OptionalDeadline deadline = {}) const;
  bool erase_blocking(const std::string& key, OptionalDeadline deadline = {}) const;

  /// Adds to the decimal integer under the key (none counts as 0) and gives the sum. Each call counts once; one that
  /// timed out may have counted.
  Task<std::int64_t> add(std::string key, std::int64_t delta, OptionalDeadline deadline = {}) const;
  std::int64_t add_blocking(const std::string& key, std::int64_t delta, OptionalDeadline deadline = {}) const;

  /// Appends to the value (none counts as empty) and gives its new length in bytes.
  Task<std::int64_t> append(std::string key, std::string text, OptionalDeadline deadline = {}) const;
  std::int64_t append_blocking(const std::string& key, const std::string& text, OptionalDeadline deadline = {}) const;

  /// Waits until all keys exist at once; at most max_keys_of_a_wait.
  Task<void> wait(std::vector<std::string> keys, OptionalDeadline deadline = {}) const;
  void wait_blocking(const std::vector<std::string>& keys, OptionalDeadline deadline = {}) const;

  /// Collective: waits until every rank of the job (or all parties) has come to the barrier of this name; then the name
  /// is free for the next round. A rank is in a barrier of one name once at a time.
  Task<void> barrier(std::string name, OptionalDeadline deadline = {}) const;
  void barrier_blocking(const std::string& name, OptionalDeadline deadline = {}) const;

 private:
  Request about(Operation operation, std::string key) const;
  Request about_many(Operation operation, std::vector<std::string> keys) const;
  Request with_value(Operation operation, std::string key, std::string value) const;
  Deadline by(const OptionalDeadline& deadline) const;
  Task<Response> ask(Request request, const OptionalDeadline& deadline) const;

  /// The task's own deadline comes first, and has the better sentence.
  template <class T>
  T block(Task<T> task, const OptionalDeadline& deadline, const char* doing) const;

  std::weak_ptr<Exchange> exchange_;
  std::shared_ptr<Control> control_;
  std::string prefix_;
  std::shared_ptr<const RankSet> parties_;  ///< null: all ranks of the job
  std::chrono::nanoseconds timeout_ = std::chrono::seconds(600);
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS
#include "dtrain/rendezvous/store_definitions.hpp"
#endif
