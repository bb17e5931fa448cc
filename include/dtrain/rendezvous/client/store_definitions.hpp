#pragma once
/// @file
/// Definitions of rendezvous::Store and StoreRequest.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/client/store_client.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// Beginning of an error sentence about a request: "setting key 'a' and 2 more". @pre the request has a key
inline std::string describe(const Request& request) {
  const char* verb = "";
  switch (request.kind) {
    case RequestKind::set: verb = "setting key "; break;
    case RequestKind::get: verb = "waiting for key "; break;
    case RequestKind::try_get: verb = "looking for key "; break;
    case RequestKind::add: verb = "adding to key "; break;
    case RequestKind::wait: verb = "waiting for key "; break;
    case RequestKind::barrier: verb = "waiting in barrier "; break;
    case RequestKind::compare_set: verb = "comparing and setting key "; break;
    case RequestKind::erase: verb = "erasing key "; break;
    case RequestKind::append: verb = "appending to key "; break;
    case RequestKind::set_many: verb = "setting key "; break;
    case RequestKind::get_many:
    case RequestKind::take: verb = "waiting for key "; break;
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
  const auto make = [this](async::EventLoop&) { return start(); };
  return loop_handle->run_blocking(make, with_grace(*deadline), doing);  // its own deadline has the better sentence
}

DTRAIN_DEFINED Store::Store(std::weak_ptr<StoreClient> client, std::shared_ptr<LoopHandle> loop_handle)
    : client_(std::move(client)), loop_handle_(std::move(loop_handle)) {}

DTRAIN_DEFINED Store Store::with_prefix(const std::string& prefix) const {
  Store store = *this;
  store.prefix_ += prefix;
  return store;
}

DTRAIN_DEFINED Store Store::with_timeout(std::chrono::nanoseconds timeout) const {
  Store store = *this;
  store.timeout_ = timeout;
  return store;
}

DTRAIN_DEFINED Store Store::with_barrier_ranks(std::shared_ptr<const RankSet> ranks) const {
  Store store = *this;
  store.barrier_ranks_ = std::move(ranks);
  return store;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED StoreRequest Store::make_request(RequestKind kind,
                                                                   const OptionalDeadline& deadline) const {
  StoreRequest made{client_, loop_handle_, {}, deadline, timeout_, false};
  made.request.kind = kind;
  return made;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED StoreRequest Store::make_request(RequestKind kind, const std::string& key,
                                                                   const OptionalDeadline& deadline) const {
  StoreRequest made = make_request(kind, deadline);
  made.request.keys.push_back(prefix_ + key);
  return made;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED StoreRequest Store::make_request(RequestKind kind,
                                                                   const std::vector<std::string>& keys,
                                                                   const OptionalDeadline& deadline) const {
  StoreRequest made = make_request(kind, deadline);
  for (const std::string& key : keys) {
    made.request.keys.push_back(prefix_ + key);
  }
  return made;
}

DTRAIN_DEFINED StoreCall<void> Store::set(std::string key, std::string value, OptionalDeadline deadline) const {
  StoreRequest made = make_request(RequestKind::set, key, deadline);
  made.request.value = std::move(value);
  return made;
}

DTRAIN_DEFINED StoreCall<void> Store::set_many(std::vector<std::pair<std::string, std::string>> entries,
                                               OptionalDeadline deadline) const {
  StoreRequest made = make_request(RequestKind::set_many, deadline);
  for (auto& [key, value] : entries) {
    made.request.keys.push_back(prefix_ + key);
    made.request.values.push_back(std::move(value));
  }
  return made;
}

DTRAIN_DEFINED StoreCall<CompareSet> Store::compare_set(std::string key, std::optional<std::string> expected,
                                                        std::string desired, OptionalDeadline deadline) const {
  StoreRequest made = make_request(RequestKind::compare_set, key, deadline);
  made.request.value = std::move(desired);
  made.request.expected = std::move(expected);
  return made;
}

DTRAIN_DEFINED StoreCall<std::string> Store::get(std::string key, OptionalDeadline deadline) const {
  return make_request(RequestKind::get, key, deadline);
}

DTRAIN_DEFINED StoreCall<std::string> Store::take(std::string key, std::int64_t readers,
                                                  OptionalDeadline deadline) const {
  StoreRequest made = make_request(RequestKind::take, key, deadline);
  made.request.number = readers;
  return made;
}

DTRAIN_DEFINED StoreCall<std::vector<std::string>> Store::get_many(std::vector<std::string> keys,
                                                                   OptionalDeadline deadline) const {
  return make_request(RequestKind::get_many, keys, deadline);
}

DTRAIN_DEFINED StoreCall<std::optional<std::string>> Store::try_get(std::string key, OptionalDeadline deadline) const {
  return make_request(RequestKind::try_get, key, deadline);
}

DTRAIN_DEFINED StoreCall<bool> Store::erase(std::string key, OptionalDeadline deadline) const {
  return make_request(RequestKind::erase, key, deadline);
}

DTRAIN_DEFINED StoreCall<std::int64_t> Store::add(std::string key, std::int64_t delta,
                                                  OptionalDeadline deadline) const {
  StoreRequest made = make_request(RequestKind::add, key, deadline);
  made.request.number = delta;
  return made;
}

DTRAIN_DEFINED StoreCall<std::int64_t> Store::append(std::string key, std::string text,
                                                     OptionalDeadline deadline) const {
  StoreRequest made = make_request(RequestKind::append, key, deadline);
  made.request.value = std::move(text);
  return made;
}

DTRAIN_DEFINED StoreCall<void> Store::wait(std::vector<std::string> keys, OptionalDeadline deadline) const {
  return make_request(RequestKind::wait, keys, deadline);
}

DTRAIN_DEFINED StoreCall<void> Store::barrier(std::string name, OptionalDeadline deadline) const {
  StoreRequest made = make_request(RequestKind::barrier, name, deadline);
  if (barrier_ranks_) {
    made.request.members = *barrier_ranks_;
  }
  return made;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
