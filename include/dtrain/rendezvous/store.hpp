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

#include "dtrain/rendezvous/control.hpp"
#include "dtrain/rendezvous/exchange.hpp"
#include "dtrain/rendezvous/party_barrier.hpp"
#include "dtrain/rendezvous/request_bounds.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

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

  /// The same store, whose barriers are of so many ranks that know each other by the prefix, not of the whole job.
  Store with_parties(int parties) const {
    Store store = *this;
    store.parties_ = parties;
    return store;
  }

  /// Sets or replaces a value.
  Task<void> set(std::string key, std::string value, OptionalDeadline deadline = {}) const {
    return nothing_of(ask(with_value(Operation::set, std::move(key), std::move(value)), deadline));
  }
  void set_blocking(const std::string& key, const std::string& value, OptionalDeadline deadline = {}) const {
    block(set(key, value, by(deadline)), deadline, "setting a key in the store");
  }

  /// Sets or replaces all of these values, or none of them. Of a key that is there twice the last value counts.
  Task<void> set_many(std::vector<std::pair<std::string, std::string>> entries, OptionalDeadline deadline = {}) const {
    Request request = about_many(Operation::set_many, {});
    for (auto& [key, value] : entries) {
      request.keys.push_back(prefix_ + key);
      request.values.push_back(std::move(value));
    }
    return nothing_of(ask(std::move(request), deadline));
  }
  void set_many_blocking(const std::vector<std::pair<std::string, std::string>>& entries,
                         OptionalDeadline deadline = {}) const {
    block(set_many(entries, by(deadline)), deadline, "setting keys in the store");
  }

  /// Sets the key to `desired` if it has the value `expected`; nothing for `expected` means that it must not exist.
  Task<CompareSet> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                               OptionalDeadline deadline = {}) const {
    Request request = with_value(Operation::compare_set, std::move(key), desired);
    request.expected = std::move(expected);
    return compared(ask(std::move(request), deadline), std::move(desired));
  }
  CompareSet compare_set_blocking(const std::string& key, const std::optional<std::string>& expected,
                                  const std::string& desired, OptionalDeadline deadline = {}) const {
    return block(compare_set(key, expected, desired, by(deadline)), deadline, "comparing a key of the store");
  }

  /// The value; waits until some rank has set it.
  Task<std::string> get(std::string key, OptionalDeadline deadline = {}) const {
    return text_of(ask(about(Operation::get, std::move(key)), deadline));
  }
  std::string get_blocking(const std::string& key, OptionalDeadline deadline = {}) const {
    return block(get(key, by(deadline)), deadline, "waiting for a key of the store");
  }

  /// The values in the order of the keys; waits until all exist at once. At most max_keys_of_a_wait keys.
  Task<std::vector<std::string>> get_many(std::vector<std::string> keys, OptionalDeadline deadline = {}) const {
    const std::size_t count = keys.size();
    return values_of(ask(about_many(Operation::get_many, std::move(keys)), deadline), count);
  }
  std::vector<std::string> get_many_blocking(const std::vector<std::string>& keys,
                                             OptionalDeadline deadline = {}) const {
    return block(get_many(keys, by(deadline)), deadline, "waiting for keys of the store");
  }

  /// The value, or nothing where there is none yet.
  Task<std::optional<std::string>> try_get(std::string key, OptionalDeadline deadline = {}) const {
    return maybe_text_of(ask(about(Operation::try_get, std::move(key)), deadline));
  }
  std::optional<std::string> try_get_blocking(const std::string& key, OptionalDeadline deadline = {}) const {
    return block(try_get(key, by(deadline)), deadline, "looking for a key in the store");
  }

  /// Removes the key; who waits for it goes on waiting. Whether it existed.
  Task<bool> erase(std::string key, OptionalDeadline deadline = {}) const {
    return existed(ask(about(Operation::erase, std::move(key)), deadline));
  }
  bool erase_blocking(const std::string& key, OptionalDeadline deadline = {}) const {
    return block(erase(key, by(deadline)), deadline, "erasing a key of the store");
  }

  /// Adds to the decimal integer under the key (none counts as 0) and gives the sum. Each call counts once; one that
  /// timed out may have counted.
  Task<std::int64_t> add(std::string key, std::int64_t delta, OptionalDeadline deadline = {}) const {
    Request request = about(Operation::add, std::move(key));
    request.number = delta;
    return number_of(ask(std::move(request), deadline));
  }
  std::int64_t add_blocking(const std::string& key, std::int64_t delta, OptionalDeadline deadline = {}) const {
    return block(add(key, delta, by(deadline)), deadline, "adding to a key of the store");
  }

  /// Appends to the value (none counts as empty) and gives its new length in bytes.
  Task<std::int64_t> append(std::string key, std::string text, OptionalDeadline deadline = {}) const {
    return number_of(ask(with_value(Operation::append, std::move(key), std::move(text)), deadline));
  }
  std::int64_t append_blocking(const std::string& key, const std::string& text, OptionalDeadline deadline = {}) const {
    return block(append(key, text, by(deadline)), deadline, "appending to a key of the store");
  }

  /// Waits until all keys exist at once; at most max_keys_of_a_wait.
  Task<void> wait(std::vector<std::string> keys, OptionalDeadline deadline = {}) const {
    return nothing_of(ask(about_many(Operation::wait, std::move(keys)), deadline));
  }
  void wait_blocking(const std::vector<std::string>& keys, OptionalDeadline deadline = {}) const {
    block(wait(keys, by(deadline)), deadline, "waiting for keys of the store");
  }

  /// Collective: waits until every rank of the job (or all parties) has come to the barrier of this name; then the name
  /// is free for the next round. A rank is in a barrier of one name once at a time.
  Task<void> barrier(std::string name, OptionalDeadline deadline = {}) const {
    if (parties_ > 0) {
      return party_barrier(*this, std::move(name), parties_, by(deadline));
    }
    return nothing_of(ask(about(Operation::barrier, std::move(name)), deadline));
  }
  void barrier_blocking(const std::string& name, OptionalDeadline deadline = {}) const {
    block(barrier(name, by(deadline)), deadline, "waiting in a barrier of the store");
  }

 private:
  Request about(Operation operation, std::string key) const {
    Request request;
    request.operation = operation;
    request.keys.push_back(prefix_ + std::move(key));
    return request;
  }
  Request about_many(Operation operation, std::vector<std::string> keys) const {
    Request request;
    request.operation = operation;
    for (std::string& key : keys) {
      request.keys.push_back(prefix_ + key);
    }
    return request;
  }
  Request with_value(Operation operation, std::string key, std::string value) const {
    Request request = about(operation, std::move(key));
    request.value = std::move(value);
    return request;
  }

  Deadline by(const OptionalDeadline& deadline) const { return deadline ? *deadline : Deadline::after(timeout_); }

  Task<Response> ask(Request request, const OptionalDeadline& deadline) const {
    return ask(exchange_, std::move(request), by(deadline));
  }

  /// The answer that is ok or missing. @throws everything else
  static Task<Response> ask(std::weak_ptr<Exchange> handle, Request request, Deadline deadline) {
    if (request.keys.empty()) {
      co_return Response{};  // several keys, and there are none
    }
    const std::string doing = doing_of(request);
    require_bounded(request, doing);
    const std::shared_ptr<Exchange> exchange = handle.lock();
    if (!exchange) {
      throw Error(Errc::closed, doing + ": this rank's session with the store has ended");
    }
    Exchange::Answer answer = co_await exchange->ask(std::move(request), doing, deadline);
    if (!answer) {
      throw Error(Errc::timeout, doing + ": the deadline passed and the store does not answer")
          .with_rank(exchange->rank());
    }
    if (answer->status == Status::gave_up) {
      throw Error(Errc::timeout, doing + ": the deadline passed; " + printable(answer->text))
          .with_rank(exchange->rank());
    }
    if (answer->status != Status::ok && answer->status != Status::missing) {
      throw Error(Errc::refused, doing + ": " + printable(answer->text)).with_rank(exchange->rank());
    }
    co_return *std::move(answer);
  }

  static Task<void> nothing_of(Task<Response> answer) {
    const Response response = co_await std::move(answer);
    static_cast<void>(response);
  }
  static Task<std::string> text_of(Task<Response> answer) {
    Response response = co_await std::move(answer);
    co_return std::move(response.text);
  }
  static Task<std::optional<std::string>> maybe_text_of(Task<Response> answer) {
    Response response = co_await std::move(answer);
    if (response.status == Status::missing) {
      co_return std::nullopt;
    }
    co_return std::optional<std::string>(std::move(response.text));
  }
  static Task<std::vector<std::string>> values_of(Task<Response> answer, std::size_t count) {
    Response response = co_await std::move(answer);
    if (response.values.size() != count) {
      throw Error(Errc::protocol, "getting " + std::to_string(count) + " keys: the store answered with " +
                                      std::to_string(response.values.size()) + " values");
    }
    co_return std::move(response.values);
  }
  static Task<std::int64_t> number_of(Task<Response> answer) {
    const Response response = co_await std::move(answer);
    co_return response.number;
  }
  static Task<bool> existed(Task<Response> answer) {
    const Response response = co_await std::move(answer);
    co_return response.status == Status::ok;
  }
  static Task<CompareSet> compared(Task<Response> answer, std::string desired) {
    Response response = co_await std::move(answer);
    CompareSet result;
    result.swapped = response.number != 0;
    if (result.swapped) {
      result.now = std::move(desired);
    } else if (response.status == Status::ok) {
      result.now = std::move(response.text);
    }
    co_return std::move(result);
  }

  /// The task's own deadline comes first, and has the better sentence.
  template <class T>
  T block(Task<T> task, const OptionalDeadline& deadline, const char* doing) const {
    const auto make = [&](async::EventLoop&) { return std::move(task); };
    return control_->run_blocking(make, a_moment_after(by(deadline)), doing);
  }

  std::weak_ptr<Exchange> exchange_;
  std::shared_ptr<Control> control_;
  std::string prefix_;
  int parties_ = 0;  ///< 0: all ranks of the job
  std::chrono::nanoseconds timeout_ = std::chrono::seconds(600);
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
