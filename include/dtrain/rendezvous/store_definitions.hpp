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

/// The answer that is ok or missing. @throws everything else
inline async::Task<Response> ask(std::weak_ptr<Exchange> handle, Request request, Deadline deadline) {
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
    throw Error(Errc::timeout, doing + ": the deadline passed; " + printable(answer->text)).with_rank(exchange->rank());
  }
  if (answer->status != Status::ok && answer->status != Status::missing) {
    throw Error(Errc::refused, doing + ": " + printable(answer->text)).with_rank(exchange->rank());
  }
  co_return *std::move(answer);
}

inline async::Task<void> nothing_of(async::Task<Response> answer) {
  const Response response = co_await std::move(answer);
  static_cast<void>(response);
}

inline async::Task<std::string> text_of(async::Task<Response> answer) {
  Response response = co_await std::move(answer);
  co_return std::move(response.text);
}

inline async::Task<std::optional<std::string>> maybe_text_of(async::Task<Response> answer) {
  Response response = co_await std::move(answer);
  if (response.status == Status::missing) {
    co_return std::nullopt;
  }
  co_return std::optional<std::string>(std::move(response.text));
}

inline async::Task<std::vector<std::string>> values_of(async::Task<Response> answer, std::size_t count) {
  Response response = co_await std::move(answer);
  if (response.values.size() != count) {
    throw Error(Errc::protocol, "getting " + std::to_string(count) + " keys: the store answered with " +
                                    std::to_string(response.values.size()) + " values");
  }
  co_return std::move(response.values);
}

inline async::Task<std::int64_t> number_of(async::Task<Response> answer) {
  const Response response = co_await std::move(answer);
  co_return response.number;
}

inline async::Task<bool> existed(async::Task<Response> answer) {
  const Response response = co_await std::move(answer);
  co_return response.status == Status::ok;
}

inline async::Task<CompareSet> compared(async::Task<Response> answer, std::string desired) {
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

}  // namespace detail

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

DTRAIN_DEFINED Deadline Store::by(const OptionalDeadline& deadline) const {
  return deadline ? *deadline : Deadline::after(timeout_);
}

DTRAIN_DEFINED async::Task<Response> Store::ask(Request request, const OptionalDeadline& deadline) const {
  return detail::ask(exchange_, std::move(request), by(deadline));
}

template <class T>
T Store::block(Task<T> task, const OptionalDeadline& deadline, const char* doing) const {
  const auto make = [&](async::EventLoop&) { return std::move(task); };
  return control_->run_blocking(make, a_moment_after(by(deadline)), doing);
}

DTRAIN_DEFINED async::Task<void> Store::set(std::string key, std::string value, OptionalDeadline deadline) const {
  return detail::nothing_of(ask(with_value(Operation::set, std::move(key), std::move(value)), deadline));
}

DTRAIN_DEFINED void Store::set_blocking(const std::string& key, const std::string& value,
                                        OptionalDeadline deadline) const {
  block(set(key, value, by(deadline)), deadline, "setting a key in the store");
}

DTRAIN_DEFINED async::Task<void> Store::set_many(std::vector<std::pair<std::string, std::string>> entries,
                                                 OptionalDeadline deadline) const {
  Request request = about_many(Operation::set_many, {});
  for (auto& [key, value] : entries) {
    request.keys.push_back(prefix_ + key);
    request.values.push_back(std::move(value));
  }
  return detail::nothing_of(ask(std::move(request), deadline));
}

DTRAIN_DEFINED void Store::set_many_blocking(const std::vector<std::pair<std::string, std::string>>& entries,
                                             OptionalDeadline deadline) const {
  block(set_many(entries, by(deadline)), deadline, "setting keys in the store");
}

DTRAIN_DEFINED async::Task<CompareSet> Store::compare_set(std::string key, std::optional<std::string> expected,
                                                          std::string desired, OptionalDeadline deadline) const {
  Request request = with_value(Operation::compare_set, std::move(key), desired);
  request.expected = std::move(expected);
  return detail::compared(ask(std::move(request), deadline), std::move(desired));
}

DTRAIN_DEFINED CompareSet Store::compare_set_blocking(const std::string& key,
                                                      const std::optional<std::string>& expected,
                                                      const std::string& desired, OptionalDeadline deadline) const {
  return block(compare_set(key, expected, desired, by(deadline)), deadline, "comparing a key of the store");
}

DTRAIN_DEFINED async::Task<std::string> Store::get(std::string key, OptionalDeadline deadline) const {
  return detail::text_of(ask(about(Operation::get, std::move(key)), deadline));
}

DTRAIN_DEFINED std::string Store::get_blocking(const std::string& key, OptionalDeadline deadline) const {
  return block(get(key, by(deadline)), deadline, "waiting for a key of the store");
}

DTRAIN_DEFINED async::Task<std::string> Store::take(std::string key, std::int64_t readers,
                                                    OptionalDeadline deadline) const {
  Request request = about(Operation::take, std::move(key));
  request.number = readers;
  return detail::text_of(ask(std::move(request), deadline));
}

DTRAIN_DEFINED std::string Store::take_blocking(const std::string& key, std::int64_t readers,
                                                OptionalDeadline deadline) const {
  return block(take(key, readers, by(deadline)), deadline, "waiting for a key of the store");
}

DTRAIN_DEFINED async::Task<std::vector<std::string>> Store::get_many(std::vector<std::string> keys,
                                                                     OptionalDeadline deadline) const {
  const std::size_t count = keys.size();
  return detail::values_of(ask(about_many(Operation::get_many, std::move(keys)), deadline), count);
}

DTRAIN_DEFINED std::vector<std::string> Store::get_many_blocking(const std::vector<std::string>& keys,
                                                                 OptionalDeadline deadline) const {
  return block(get_many(keys, by(deadline)), deadline, "waiting for keys of the store");
}

DTRAIN_DEFINED async::Task<std::optional<std::string>> Store::try_get(std::string key,
                                                                      OptionalDeadline deadline) const {
  return detail::maybe_text_of(ask(about(Operation::try_get, std::move(key)), deadline));
}

DTRAIN_DEFINED std::optional<std::string> Store::try_get_blocking(const std::string& key,
                                                                  OptionalDeadline deadline) const {
  return block(try_get(key, by(deadline)), deadline, "looking for a key in the store");
}

DTRAIN_DEFINED async::Task<bool> Store::erase(std::string key, OptionalDeadline deadline) const {
  return detail::existed(ask(about(Operation::erase, std::move(key)), deadline));
}

DTRAIN_DEFINED bool Store::erase_blocking(const std::string& key, OptionalDeadline deadline) const {
  return block(erase(key, by(deadline)), deadline, "erasing a key of the store");
}

DTRAIN_DEFINED async::Task<std::int64_t> Store::add(std::string key, std::int64_t delta,
                                                    OptionalDeadline deadline) const {
  Request request = about(Operation::add, std::move(key));
  request.number = delta;
  return detail::number_of(ask(std::move(request), deadline));
}

DTRAIN_DEFINED std::int64_t Store::add_blocking(const std::string& key, std::int64_t delta,
                                                OptionalDeadline deadline) const {
  return block(add(key, delta, by(deadline)), deadline, "adding to a key of the store");
}

DTRAIN_DEFINED async::Task<std::int64_t> Store::append(std::string key, std::string text,
                                                       OptionalDeadline deadline) const {
  return detail::number_of(ask(with_value(Operation::append, std::move(key), std::move(text)), deadline));
}

DTRAIN_DEFINED std::int64_t Store::append_blocking(const std::string& key, const std::string& text,
                                                   OptionalDeadline deadline) const {
  return block(append(key, text, by(deadline)), deadline, "appending to a key of the store");
}

DTRAIN_DEFINED async::Task<void> Store::wait(std::vector<std::string> keys, OptionalDeadline deadline) const {
  return detail::nothing_of(ask(about_many(Operation::wait, std::move(keys)), deadline));
}

DTRAIN_DEFINED void Store::wait_blocking(const std::vector<std::string>& keys, OptionalDeadline deadline) const {
  block(wait(keys, by(deadline)), deadline, "waiting for keys of the store");
}

DTRAIN_DEFINED async::Task<void> Store::barrier(std::string name, OptionalDeadline deadline) const {
  Request request = about(Operation::barrier, std::move(name));
  if (parties_) {
    request.parties = *parties_;
  }
  return detail::nothing_of(ask(std::move(request), deadline));
}

DTRAIN_DEFINED void Store::barrier_blocking(const std::string& name, OptionalDeadline deadline) const {
  block(barrier(name, by(deadline)), deadline, "waiting in a barrier of the store");
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
