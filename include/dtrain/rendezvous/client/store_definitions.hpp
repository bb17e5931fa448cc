#pragma once
/// @file
/// Definitions of rendezvous::Store and StoreRequest.

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

DTRAIN_DEFINED Request Store::make_request(RequestKind kind, std::string key) const {
  Request request;
  request.kind = kind;
  request.keys.push_back(prefix_ + std::move(key));
  return request;
}

DTRAIN_DEFINED Request Store::make_request_of_many(RequestKind kind, std::vector<std::string> keys) const {
  Request request;
  request.kind = kind;
  for (std::string& key : keys) {
    request.keys.push_back(prefix_ + key);
  }
  return request;
}

DTRAIN_DEFINED Request Store::make_request_with_value(RequestKind kind, std::string key, std::string value) const {
  Request request = make_request(kind, std::move(key));
  request.value = std::move(value);
  return request;
}

DTRAIN_DEFINED StoreRequest Store::prepare(Request request, const OptionalDeadline& deadline) const {
  return {client_, loop_handle_, std::move(request), deadline, timeout_, false};
}

DTRAIN_DEFINED StoreCall<void> Store::set(std::string key, std::string value, OptionalDeadline deadline) const {
  return prepare(make_request_with_value(RequestKind::set, std::move(key), std::move(value)), deadline);
}

DTRAIN_DEFINED StoreCall<void> Store::set_many(std::vector<std::pair<std::string, std::string>> entries,
                                               OptionalDeadline deadline) const {
  Request request = make_request_of_many(RequestKind::set_many, {});
  for (auto& [key, value] : entries) {
    request.keys.push_back(prefix_ + key);
    request.values.push_back(std::move(value));
  }
  return prepare(std::move(request), deadline);
}

DTRAIN_DEFINED StoreCall<CompareSet> Store::compare_set(std::string key, std::optional<std::string> expected,
                                                        std::string desired, OptionalDeadline deadline) const {
  Request request = make_request_with_value(RequestKind::compare_set, std::move(key), std::move(desired));
  request.expected = std::move(expected);
  return prepare(std::move(request), deadline);
}

DTRAIN_DEFINED StoreCall<std::string> Store::get(std::string key, OptionalDeadline deadline) const {
  return prepare(make_request(RequestKind::get, std::move(key)), deadline);
}

DTRAIN_DEFINED StoreCall<std::string> Store::take(std::string key, std::int64_t readers,
                                                  OptionalDeadline deadline) const {
  Request request = make_request(RequestKind::take, std::move(key));
  request.number = readers;
  return prepare(std::move(request), deadline);
}

DTRAIN_DEFINED StoreCall<std::vector<std::string>> Store::get_many(std::vector<std::string> keys,
                                                                   OptionalDeadline deadline) const {
  return prepare(make_request_of_many(RequestKind::get_many, std::move(keys)), deadline);
}

DTRAIN_DEFINED StoreCall<std::optional<std::string>> Store::try_get(std::string key, OptionalDeadline deadline) const {
  return prepare(make_request(RequestKind::try_get, std::move(key)), deadline);
}

DTRAIN_DEFINED StoreCall<bool> Store::erase(std::string key, OptionalDeadline deadline) const {
  return prepare(make_request(RequestKind::erase, std::move(key)), deadline);
}

DTRAIN_DEFINED StoreCall<std::int64_t> Store::add(std::string key, std::int64_t delta,
                                                  OptionalDeadline deadline) const {
  Request request = make_request(RequestKind::add, std::move(key));
  request.number = delta;
  return prepare(std::move(request), deadline);
}

DTRAIN_DEFINED StoreCall<std::int64_t> Store::append(std::string key, std::string text,
                                                     OptionalDeadline deadline) const {
  return prepare(make_request_with_value(RequestKind::append, std::move(key), std::move(text)), deadline);
}

DTRAIN_DEFINED StoreCall<void> Store::wait(std::vector<std::string> keys, OptionalDeadline deadline) const {
  return prepare(make_request_of_many(RequestKind::wait, std::move(keys)), deadline);
}

DTRAIN_DEFINED StoreCall<void> Store::barrier(std::string name, OptionalDeadline deadline) const {
  Request request = make_request(RequestKind::barrier, std::move(name));
  if (barrier_ranks_) {
    request.members = *barrier_ranks_;
  }
  return prepare(std::move(request), deadline);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
