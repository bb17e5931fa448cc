#pragma once
/// @file
/// The functions of rendezvous::Store.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/control.hpp"
#include "dtrain/rendezvous/exchange.hpp"
#include "dtrain/rendezvous/request_bounds.hpp"
#include "dtrain/rendezvous/store.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

inline async::Task<Response> answer_at_once() {
  co_return Response{};
}

}  // namespace detail

DTRAIN_DEFINED async::Task<Response> StoreRequest::send() {
  if (request.keys.empty()) {
    return detail::answer_at_once();  // an operation on several keys, of which there are none
  }
  std::string doing = doing_of(request);
  require_bounded(request, doing);
  std::shared_ptr<Exchange> session = exchange.lock();
  if (!session) {
    throw Error(Errc::closed, doing + ": this rank's session with the store has ended");
  }
  return Exchange::ask(std::move(session), std::move(request), std::move(doing), deadline);
}

DTRAIN_DEFINED Response StoreRequest::wait() {
  if (request.keys.empty()) {
    return {};
  }
  const std::string doing = doing_of(request);
  const auto make = [this](async::EventLoop&) { return send(); };
  return control->run_blocking(make, a_moment_after(deadline), doing);  // its own deadline has the better sentence
}

DTRAIN_DEFINED Request Store::about(Operation operation, std::string key) const {
  Request request;
  request.operation = operation;
  request.keys.push_back(prefix_ + std::move(key));
  return request;
}

DTRAIN_DEFINED Request Store::about_many(Operation operation, std::vector<std::string> keys) const {
  Request request;
  request.operation = operation;
  for (std::string& key : keys) {
    request.keys.push_back(prefix_ + key);
  }
  return request;
}

DTRAIN_DEFINED Request Store::with_value(Operation operation, std::string key, std::string value) const {
  Request request = about(operation, std::move(key));
  request.value = std::move(value);
  return request;
}

DTRAIN_DEFINED StoreRequest Store::ask(Request request, const OptionalDeadline& deadline) const {
  return {exchange_, control_, std::move(request), deadline ? *deadline : Deadline::after(timeout_)};
}

DTRAIN_DEFINED StoreCall<void> Store::set(std::string key, std::string value, OptionalDeadline deadline) const {
  return ask(with_value(Operation::set, std::move(key), std::move(value)), deadline);
}

DTRAIN_DEFINED StoreCall<void> Store::set_many(std::vector<std::pair<std::string, std::string>> entries,
                                               OptionalDeadline deadline) const {
  Request request = about_many(Operation::set_many, {});
  for (auto& [key, value] : entries) {
    request.keys.push_back(prefix_ + key);
    request.values.push_back(std::move(value));
  }
  return ask(std::move(request), deadline);
}

DTRAIN_DEFINED StoreCall<CompareSet> Store::compare_set(std::string key, std::optional<std::string> expected,
                                                        std::string desired, OptionalDeadline deadline) const {
  Request request = with_value(Operation::compare_set, std::move(key), std::move(desired));
  request.expected = std::move(expected);
  return ask(std::move(request), deadline);
}

DTRAIN_DEFINED StoreCall<std::string> Store::get(std::string key, OptionalDeadline deadline) const {
  return ask(about(Operation::get, std::move(key)), deadline);
}

DTRAIN_DEFINED StoreCall<std::string> Store::take(std::string key, std::int64_t readers,
                                                  OptionalDeadline deadline) const {
  Request request = about(Operation::take, std::move(key));
  request.number = readers;
  return ask(std::move(request), deadline);
}

DTRAIN_DEFINED StoreCall<std::vector<std::string>> Store::get_many(std::vector<std::string> keys,
                                                                   OptionalDeadline deadline) const {
  return ask(about_many(Operation::get_many, std::move(keys)), deadline);
}

DTRAIN_DEFINED StoreCall<std::optional<std::string>> Store::try_get(std::string key, OptionalDeadline deadline) const {
  return ask(about(Operation::try_get, std::move(key)), deadline);
}

DTRAIN_DEFINED StoreCall<bool> Store::erase(std::string key, OptionalDeadline deadline) const {
  return ask(about(Operation::erase, std::move(key)), deadline);
}

DTRAIN_DEFINED StoreCall<std::int64_t> Store::add(std::string key, std::int64_t delta,
                                                  OptionalDeadline deadline) const {
  Request request = about(Operation::add, std::move(key));
  request.number = delta;
  return ask(std::move(request), deadline);
}

DTRAIN_DEFINED StoreCall<std::int64_t> Store::append(std::string key, std::string text,
                                                     OptionalDeadline deadline) const {
  return ask(with_value(Operation::append, std::move(key), std::move(text)), deadline);
}

DTRAIN_DEFINED StoreCall<void> Store::wait(std::vector<std::string> keys, OptionalDeadline deadline) const {
  return ask(about_many(Operation::wait, std::move(keys)), deadline);
}

DTRAIN_DEFINED StoreCall<void> Store::barrier(std::string name, OptionalDeadline deadline) const {
  Request request = about(Operation::barrier, std::move(name));
  if (parties_) {
    request.parties = *parties_;
  }
  return ask(std::move(request), deadline);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
