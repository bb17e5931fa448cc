#pragma once
/// @file
/// rendezvous::Store: the keys and barriers of a job, as a rank uses them.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/control.hpp"
#include "dtrain/rendezvous/exchange.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A handle: copies refer to the same session, and may outlive it; their calls then throw. Keys and names of barriers
/// are prefixed (with_prefix), have at most max_key_bytes with their prefix, and values at most max_value_bytes.
///
/// Blocking: the coroutine forms suspend, on the rank's control loop; the ..._blocking forms block the calling thread,
/// which is not the loop's. All until the deadline, or a moment longer (a second at most) for the store's last word.
/// Threads: the coroutine forms on the loop; the others from any thread, several at once.
/// @throws Error (timeout) that names the key or barrier; the job's first cause (PeerLost, JobFailed) from every
/// pending and later call; Error (refused) with the store's sentence; Error (invalid_argument) for what is too long;
/// Error (closed) after the session
class Store {
 public:
  Store(std::weak_ptr<Exchange> exchange, std::shared_ptr<Control> control)
      : exchange_(std::move(exchange)), control_(std::move(control)) {}

  /// The same store, with `prefix` before every key, after the prefix of this handle.
  Store with_prefix(const std::string& prefix) const {
    Store store = *this;
    store.prefix_ += prefix;
    return store;
  }
  const std::string& prefix() const noexcept { return prefix_; }

  /// Sets or replaces a value.
  async::Task<void> set(std::string key, std::string value, Deadline deadline) const {
    Request request = about(Operation::set, std::move(key));
    request.value = std::move(value);
    return nothing_of(ask(exchange_, std::move(request), "setting key ", deadline));
  }
  void set_blocking(const std::string& key, const std::string& value, Deadline deadline) const {
    block(set(key, value, deadline), deadline, "setting a key in the store");
  }

  /// The value; waits until some rank has set it.
  async::Task<std::string> get(std::string key, Deadline deadline) const {
    return text_of(ask(exchange_, about(Operation::get, std::move(key)), "waiting for key ", deadline));
  }
  std::string get_blocking(const std::string& key, Deadline deadline) const {
    return block(get(key, deadline), deadline, "waiting for a key of the store");
  }

  /// The value, or nothing where there is none yet.
  async::Task<std::optional<std::string>> try_get(std::string key, Deadline deadline) const {
    return maybe_text_of(ask(exchange_, about(Operation::try_get, std::move(key)), "looking for key ", deadline));
  }
  std::optional<std::string> try_get_blocking(const std::string& key, Deadline deadline) const {
    return block(try_get(key, deadline), deadline, "looking for a key in the store");
  }

  /// Adds to the decimal integer under the key (none counts as 0) and gives the sum. Each call counts once; one that
  /// timed out may have counted.
  async::Task<std::int64_t> add(std::string key, std::int64_t delta, Deadline deadline) const {
    Request request = about(Operation::add, std::move(key));
    request.number = delta;
    return number_of(ask(exchange_, std::move(request), "adding to key ", deadline));
  }
  std::int64_t add_blocking(const std::string& key, std::int64_t delta, Deadline deadline) const {
    return block(add(key, delta, deadline), deadline, "adding to a key of the store");
  }

  /// Waits until all keys exist; at most max_keys_of_a_wait.
  async::Task<void> wait(std::vector<std::string> keys, Deadline deadline) const {
    Request request;
    request.operation = Operation::wait;
    for (std::string& key : keys) {
      request.keys.push_back(prefix_ + key);
    }
    return nothing_of(ask(exchange_, std::move(request), "waiting for key ", deadline));
  }
  void wait_blocking(const std::vector<std::string>& keys, Deadline deadline) const {
    block(wait(keys, deadline), deadline, "waiting for keys of the store");
  }

  /// Collective: waits until every rank of the job has come to the barrier of this name; then the name is free for the
  /// next round. A rank is in a barrier of one name once at a time.
  async::Task<void> barrier(std::string name, Deadline deadline) const {
    return nothing_of(ask(exchange_, about(Operation::barrier, std::move(name)), "waiting in barrier ", deadline));
  }
  void barrier_blocking(const std::string& name, Deadline deadline) const {
    block(barrier(name, deadline), deadline, "waiting in a barrier of the store");
  }

 private:
  Request about(Operation operation, std::string key) const {
    Request request;
    request.operation = operation;
    request.keys.push_back(prefix_ + std::move(key));
    return request;
  }

  /// The answer that is ok or missing. @throws everything else
  static async::Task<Response> ask(std::weak_ptr<Exchange> handle, Request request, const char* verb,
                                   Deadline deadline) {
    if (request.keys.empty()) {
      co_return Response{};  // a wait for no key
    }
    const std::string doing =
        std::string(verb) + "'" + std::string(cut(request.keys.front(), 128)) + "'" +
        (request.keys.size() > 1 ? " and " + std::to_string(request.keys.size() - 1) + " more" : "");
    require_bounded(request, doing);
    const std::shared_ptr<Exchange> exchange = handle.lock();
    if (!exchange) {
      throw Error(Errc::closed, doing + ": this rank's session with the store has ended");
    }
    const Exchange::Answer answer = co_await exchange->ask(std::move(request), doing, deadline);
    if (!answer) {
      throw Error(Errc::timeout, doing + ": the deadline passed and the store does not answer")
          .with_rank(exchange->rank());
    }
    if (answer->status == Status::gave_up) {
      throw Error(Errc::timeout, doing + ": the deadline passed; " + answer->text).with_rank(exchange->rank());
    }
    if (answer->status != Status::ok && answer->status != Status::missing) {
      throw Error(Errc::refused, doing + ": " + answer->text).with_rank(exchange->rank());
    }
    co_return *answer;
  }

  static void require_bounded(const Request& request, const std::string& doing) {
    if (request.keys.size() > max_keys_of_a_wait) {
      throw Error(Errc::invalid_argument,
                  doing + ": at most " + std::to_string(max_keys_of_a_wait) + " keys can be waited for at once");
    }
    for (const std::string& key : request.keys) {
      if (key.size() > max_key_bytes) {
        throw Error(Errc::invalid_argument, doing + ": it has " + std::to_string(key.size()) +
                                                " bytes with its prefix; at most " + std::to_string(max_key_bytes) +
                                                " are possible");
      }
    }
    if (request.value.size() > max_value_bytes) {
      throw Error(Errc::invalid_argument, doing + ": the value has " + std::to_string(request.value.size()) +
                                              " bytes; at most " + std::to_string(max_value_bytes) + " are possible");
    }
  }

  static async::Task<void> nothing_of(async::Task<Response> answer) {
    const Response response = co_await std::move(answer);
    static_cast<void>(response);
  }
  static async::Task<std::string> text_of(async::Task<Response> answer) {
    Response response = co_await std::move(answer);
    co_return std::move(response.text);
  }
  static async::Task<std::optional<std::string>> maybe_text_of(async::Task<Response> answer) {
    Response response = co_await std::move(answer);
    if (response.status == Status::missing) {
      co_return std::nullopt;
    }
    co_return std::optional<std::string>(std::move(response.text));
  }
  static async::Task<std::int64_t> number_of(async::Task<Response> answer) {
    const Response response = co_await std::move(answer);
    co_return response.number;
  }

  /// The task's own deadline comes first, and has the better sentence.
  template <class T>
  T block(async::Task<T> task, Deadline deadline, const char* doing) const {
    const auto make = [&](async::EventLoop&) { return std::move(task); };
    return control_->run_blocking(make, a_moment_after(deadline), doing);
  }

  std::weak_ptr<Exchange> exchange_;
  std::shared_ptr<Control> control_;
  std::string prefix_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
