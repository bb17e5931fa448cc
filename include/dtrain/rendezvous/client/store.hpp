#pragma once
/// @file
/// rendezvous::Store: a rank's handle on its job's key-value store and barriers; each call takes effect wholly or not
/// at all.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/client/store_call.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A rank's handle on the job's key-value store. Copies refer to the same session, and may outlive it; their calls then
/// throw. Each call is one request and one response, and takes effect wholly or not at all.
/// Bounds: a key or barrier name has at most max_key_bytes with its prefix (with_prefix), a value max_value_bytes, all
/// keys and values of one call max_batch_bytes.
///
/// An operation returns a StoreCall, which sends nothing by itself. In a coroutine on the rank's control loop
/// (ProcessGroup::run or spawn), write `co_await store.get("key")`. On any other thread, `store.get("key").wait()`
/// blocks. Both take until the deadline at most (timeout() from now if none is given), and a second more for the
/// store's last response. Threads: any, several at once.
/// @throws Error (timeout) that names the key or barrier; the job's first cause (PeerLost, JobFailed) from every
/// pending and later call; Error (refused) with the store's sentence; Error (invalid_argument) if a bound is exceeded;
/// Error (limit) if too many bytes wait to be sent; Error (closed) after the session
/// @ingroup store
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

  /// The same store, with this timeout for calls without a deadline. ProcessGroup::store() has the group's timeout.
  Store with_timeout(std::chrono::nanoseconds timeout) const {
    Store store = *this;
    store.timeout_ = timeout;
    return store;
  }
  std::chrono::nanoseconds timeout() const noexcept { return timeout_; }

  /// The same store, for calls of dtrain's own: error sentences say their purpose ("comparing the models of the ranks")
  /// in place of their keys.
  friend Store with_call_purpose(Store store, std::string purpose) {
    store.purpose_ = std::move(purpose);
    return store;
  }

  /// The same store, for calls of dtrain's own, each of which calls `before_wait()` when a thread is about to block in
  /// it: other ranks may wait for work of this one. `before_wait` neither blocks nor throws.
  friend Store with_before_wait(Store store, std::shared_ptr<const std::function<void()>> before_wait) {
    store.before_wait_ = std::move(before_wait);
    return store;
  }

  /// The same store, with barriers among these ranks of the job instead of all.
  Store with_barrier_ranks(std::shared_ptr<const RankSet> ranks) const {
    Store store = *this;
    store.barrier_ranks_ = std::move(ranks);
    return store;
  }

  /// Sets or replaces a value.
  StoreCall<void> set(std::string key, std::string value, OptionalDeadline deadline = {}) const {
    StoreRequest made = make_request(RequestKind::set, std::move(key), deadline);
    made.request.value = std::move(value);
    return made;
  }

  /// Sets or replaces all values, or none. If a key occurs twice, its last value counts.
  StoreCall<void> set_many(std::vector<std::pair<std::string, std::string>> entries,
                           OptionalDeadline deadline = {}) const {
    std::vector<std::string> keys;
    std::vector<std::string> values;
    for (auto& [key, value] : entries) {
      keys.push_back(std::move(key));
      values.push_back(std::move(value));
    }
    StoreRequest made = make_request(RequestKind::set_many, std::move(keys), deadline);
    made.request.values = std::move(values);
    return made;
  }

  /// Sets the key to `desired` if it has the value `expected`; nullopt as `expected` means that the key must not exist.
  StoreCall<CompareSet> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                                    OptionalDeadline deadline = {}) const {
    StoreRequest made = make_request(RequestKind::compare_set, std::move(key), deadline);
    made.request.value = std::move(desired);
    made.request.expected = std::move(expected);
    return made;
  }

  /// The value; waits until some rank has set it.
  StoreCall<std::string> get(std::string key, OptionalDeadline deadline = {}) const {
    return make_request(RequestKind::get, std::move(key), deadline);
  }

  /// As get; the store erases the key after `readers` takes, so that no key remains of a value for that many readers.
  /// Each call counts once; a call that timed out may have counted.
  StoreCall<std::string> take(std::string key, std::int64_t readers, OptionalDeadline deadline = {}) const {
    StoreRequest made = make_request(RequestKind::take, std::move(key), deadline);
    made.request.number = readers;
    return made;
  }

  /// The values in the order of the keys; waits until all exist at once. At most max_keys_per_wait keys.
  StoreCall<std::vector<std::string>> get_many(std::vector<std::string> keys, OptionalDeadline deadline = {}) const {
    return make_request(RequestKind::get_many, std::move(keys), deadline);
  }

  /// The value, or nothing if the key does not exist.
  StoreCall<std::optional<std::string>> try_get(std::string key, OptionalDeadline deadline = {}) const {
    return make_request(RequestKind::try_get, std::move(key), deadline);
  }

  /// Removes the key, and returns whether it existed. Waits for the key continue.
  StoreCall<bool> erase(std::string key, OptionalDeadline deadline = {}) const {
    return make_request(RequestKind::erase, std::move(key), deadline);
  }

  /// Adds to the decimal integer under the key (a missing key counts as 0) and returns the sum. Each call counts once;
  /// a call that timed out may have counted.
  StoreCall<std::int64_t> add(std::string key, std::int64_t delta, OptionalDeadline deadline = {}) const {
    StoreRequest made = make_request(RequestKind::add, std::move(key), deadline);
    made.request.number = delta;
    return made;
  }

  /// Appends to the value (a missing key counts as empty) and returns its new length in bytes.
  StoreCall<std::int64_t> append(std::string key, std::string text, OptionalDeadline deadline = {}) const {
    StoreRequest made = make_request(RequestKind::append, std::move(key), deadline);
    made.request.value = std::move(text);
    return made;
  }

  /// Waits until all keys exist at once; at most max_keys_per_wait.
  StoreCall<void> wait(std::vector<std::string> keys, OptionalDeadline deadline = {}) const {
    return make_request(RequestKind::wait, std::move(keys), deadline);
  }

  /// Collective: waits until every rank of the job (or of with_barrier_ranks) has reached the barrier of this name;
  /// then the name may be used again. A rank may wait in a barrier of one name only once at a time.
  StoreCall<void> barrier(std::string name, OptionalDeadline deadline = {}) const {
    StoreRequest made = make_request(RequestKind::barrier, std::move(name), deadline);
    if (barrier_ranks_) {
      made.request.members = *barrier_ranks_;
    }
    return made;
  }

 private:
  StoreRequest make_request(RequestKind kind, std::string key, const OptionalDeadline& deadline) const;
  StoreRequest make_request(RequestKind kind, std::vector<std::string> keys, const OptionalDeadline& deadline) const;
  std::weak_ptr<StoreClient> client_;
  std::shared_ptr<LoopHandle> loop_handle_;
  std::string prefix_;
  std::string purpose_;                           ///< see with_call_purpose
  std::shared_ptr<const RankSet> barrier_ranks_;  ///< null: all ranks of the job
  std::shared_ptr<const std::function<void()>> before_wait_;
  std::chrono::nanoseconds timeout_ = std::chrono::seconds(600);
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

namespace DTRAIN_NAMESPACE {
using rendezvous::CompareSet;
using rendezvous::RankSet;
using rendezvous::Store;
using rendezvous::StoreCall;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/rendezvous/client/store_client.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// Beginning of an error sentence about a request: its purpose, else "setting key 'a' and 2 more". @pre the request has
/// a key
inline std::string describe(const Request& request) {
  if (!request.purpose.empty()) {
    return request.purpose;
  }
  const char* verb = "";
  switch (request.kind) {
    case RequestKind::set:
    case RequestKind::set_many: verb = "setting key "; break;
    case RequestKind::get:
    case RequestKind::get_many:
    case RequestKind::take:
    case RequestKind::wait: verb = "waiting for key "; break;
    case RequestKind::try_get: verb = "looking for key "; break;
    case RequestKind::add: verb = "adding to key "; break;
    case RequestKind::barrier: verb = "waiting in barrier "; break;
    case RequestKind::compare_set: verb = "comparing and setting key "; break;
    case RequestKind::erase: verb = "erasing key "; break;
    case RequestKind::append: verb = "appending to key "; break;
  }
  const std::string key = in_quotes(request.keys.front());
  return request.keys.size() == 1 ? verb + key : format_text("{}{} and {} more", {verb, key, request.keys.size() - 1});
}

/// Checks a request against the bounds. @throws Error (invalid_argument) with the bound that it exceeds
inline void require_bounded(const Request& request, const std::string& doing) {
  const auto refuse = [&](const std::string& what, std::size_t bound, const char* rest = "") {
    throw_error(Errc::invalid_argument, "{}: {}; at most {} are possible{}", {doing, what, bound, rest});
  };
  if (request.keys.size() > max_keys_per_wait) {
    refuse(format_text("these are {} keys", {request.keys.size()}), max_keys_per_wait, " at once");
  }
  if (request.members.ranges.size() > max_barrier_ranges) {
    refuse(format_text("its {} ranks are {} ranges of equal steps",
                       {request.members.size(), request.members.ranges.size()}),
           max_barrier_ranges);
  }
  std::size_t sum = request.value.size() + (request.expected ? request.expected->size() : 0);
  for (const std::string& key : request.keys) {
    sum += key.size();
    if (key.size() > max_key_bytes) {
      refuse(format_text("it has {} bytes with its prefix", {key.size()}), max_key_bytes);
    }
  }
  for (const std::string& value : request.values) {
    sum += value.size();
    if (value.size() > max_value_bytes) {
      refuse(format_text("a value has {} bytes", {value.size()}), max_value_bytes, large_value_remedy);
    }
  }
  if (request.value.size() > max_value_bytes) {
    refuse(format_text("the value has {} bytes", {request.value.size()}), max_value_bytes, large_value_remedy);
  }
  if (sum > max_batch_bytes) {
    refuse(format_text("its keys and values have {} bytes together", {sum}), max_batch_bytes, " at once");
  }
}

inline async::Task<Response> answer_at_once() {
  co_return Response{};
}

}  // namespace detail

DTRAIN_DEFINED void StoreRequest::spend() {
  if (std::exchange(is_spent, true)) {
    throw_error(Errc::invalid_argument,
                "a call of the store was awaited or waited for twice, or after it was moved from; make a new one");
  }
}

DTRAIN_DEFINED async::Task<Response> StoreRequest::start() {
  const Deadline by = deadline ? *deadline : Deadline::after(timeout);
  if (request.keys.empty()) {
    return detail::answer_at_once();  // an operation on several keys, of which there are none
  }
  std::string doing = detail::describe(request);
  detail::require_bounded(request, doing);
  std::shared_ptr<StoreClient> session = client.lock();
  if (!session) {
    throw_error(Errc::closed, "{}: this rank's session with the store has ended", {doing});
  }
  return StoreClient::send_request(std::move(session), std::move(request), std::move(doing), by);
}

DTRAIN_DEFINED async::Task<Response> StoreRequest::send() {
  spend();
  if (loop_handle && !client.expired() && !loop_handle->on_loop_thread()) {
    throw_error(Errc::invalid_argument,
                "{}: awaited on another thread than the control thread; await it in a coroutine of run or spawn, or "
                "call wait()",
                {detail::describe(request)});
  }
  return start();
}

DTRAIN_DEFINED Response StoreRequest::wait() {
  spend();
  if (request.keys.empty()) {
    return {};
  }
  deadline = deadline ? *deadline : Deadline::after(timeout);
  const std::string doing = detail::describe(request);
  if (!loop_handle) {
    throw_error(Errc::invalid_argument, "{}: this store has no thread of its own; co_await the call instead", {doing});
  }
  if (before_wait) (*before_wait)();
  const auto make = [this](async::EventLoop&) { return start(); };
  return loop_handle->run_blocking(make, with_grace(*deadline), doing);  // the request's own deadline is earlier
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED StoreRequest Store::make_request(RequestKind kind, std::string key,
                                                                   const OptionalDeadline& deadline) const {
  return make_request(kind, std::vector<std::string>{std::move(key)}, deadline);
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED StoreRequest Store::make_request(RequestKind kind, std::vector<std::string> keys,
                                                                   const OptionalDeadline& deadline) const {
  for (std::string& key : keys) {
    key.insert(0, prefix_);
  }
  StoreRequest made{client_, loop_handle_, {}, deadline, timeout_, before_wait_};
  made.request.kind = kind;
  made.request.purpose = purpose_;
  made.request.keys = std::move(keys);
  return made;
}
}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
