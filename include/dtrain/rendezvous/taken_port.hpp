#pragma once
/// @file
/// Listening for the ranks of a job where another job's store may hold the port.

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/net/connect.hpp"
#include "dtrain/net/own_address.hpp"
#include "dtrain/rendezvous/entrance.hpp"
#include "dtrain/rendezvous/listen.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// Tells a store of dtrain's at `address` that this process wanted to open one there: its job ends where nothing tells
/// the two jobs apart. @returns its answer; empty for what is no store of dtrain's or does not answer soon
inline async::Task<std::string> ask_holder(async::EventLoop& loop, Address address, const JoinRequest& request,
                                           Deadline deadline) {
  std::string answer;
  try {
    async::Task<net::Connection> connecting = net::connect_with_backoff(loop, address.host, address.port, deadline);
    net::Connection connection = co_await std::move(connecting);
    Link link(std::move(connection));
    Knock call = request.message(std::chrono::milliseconds(0));
    const KnockResult result = co_await knock(link, address, std::move(call), "asking", deadline, deadline);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      answer = refused->sentence;
    } else if (const Failure* failure = std::get_if<Failure>(&result)) {
      answer = failure->cause.sentence();
    }
  } catch (const Error&) {  // a program of somebody else's, or a store with another secret
  }
  co_return answer;
}

}  // namespace detail

/// listen_at_one_of. Where the port is taken, a store of dtrain's that has it is asked whose it is, and told.
/// @param request as this process would join
/// @throws as listen_at_one_of; what the other store says ends the sentence
inline async::Task<std::vector<net::Listener>> listen_or_ask(async::EventLoop& loop, Address address, ListenRules rules,
                                                             const JoinRequest& request, Deadline deadline) {
  constexpr std::chrono::milliseconds patience{1500};
  std::optional<Error> taken;
  try {
    std::vector<net::Listener> listeners = co_await listen_at_one_of(loop, address, deadline, rules);
    co_return std::move(listeners);
  } catch (const Error& error) {
    if (error.code().value() != EADDRINUSE) {
      throw;
    }
    taken = error;
  }
  const std::string own = rules.interface ? net::own_address_named(*rules.interface) : std::string();
  address.host = own.empty() ? address.host : own;
  const Deadline soon = earlier(deadline, Deadline::after(patience));
  const std::string answer = co_await detail::ask_holder(loop, address, request, soon);
  if (answer.empty()) {
    throw *taken;
  }
  throw Error(taken->code(), taken->what() + ("; the store of dtrain's there says: " + answer));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
