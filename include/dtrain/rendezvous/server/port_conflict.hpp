#pragma once
/// @file
/// Port conflict: listens for ranks, or asks the dtrain store that holds the port about its job.

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/net/connect.hpp"
#include "dtrain/net/local_address.hpp"
#include "dtrain/rendezvous/client/store_connector.hpp"
#include "dtrain/rendezvous/server/listen.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// Sends a Join to the dtrain store at `address`, as the process that wanted to open one there. If nothing
/// distinguishes the two jobs, the store's job fails (JobState::claim).
/// @returns the store's answer; empty if no dtrain store answers by the deadline
inline async::Task<std::string> query_port_holder(async::EventLoop& loop, StoreAddress address, Join join,
                                                  Deadline deadline) {
  std::string answer;
  try {
    async::Task<net::Connection> connecting = net::connect_with_backoff(loop, address.host, address.port, deadline);
    net::Connection connection = co_await std::move(connecting);
    FramedConnection framed(std::move(connection));
    join.process = ::getpid();
    HandshakeRequest message = std::move(join);
    const HandshakeResult result =
        co_await handshake(framed, address, std::move(message), "asking", deadline, deadline);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      answer = refused->sentence;
    } else if (const Failure* failure = std::get_if<Failure>(&result)) {
      answer = failure->cause.sentence();
    }
  } catch (const Error&) {  // another program, or a store with another secret
  }
  co_return answer;
}

}  // namespace detail

/// As listen_on_any. If a dtrain store holds the port, this process sends it a Join. Its answer ends the error
/// sentence.
/// @param join that of this process
/// @throws as listen_on_any
inline async::Task<std::vector<net::Listener>> listen_or_query_holder(async::EventLoop& loop, StoreAddress address,
                                                                      ListenOptions options, Join join,
                                                                      Deadline deadline) {
  constexpr std::chrono::milliseconds reply_timeout{1500};
  std::optional<Error> taken;
  try {
    std::vector<net::Listener> listeners = co_await listen_on_any(loop, address, deadline, options);
    co_return std::move(listeners);
  } catch (const Error& error) {
    if (error.code().value() != EADDRINUSE) {
      throw;
    }
    taken = error;
  }
  const std::string own = options.interface ? net::local_address_named(*options.interface) : std::string();
  address.host = own.empty() ? address.host : own;
  const Deadline soon = earlier(deadline, Deadline::after(reply_timeout));
  const std::string answer = co_await detail::query_port_holder(loop, address, std::move(join), soon);
  if (answer.empty()) {
    throw *taken;
  }
  throw Error(taken->code(), taken->what() + ("; the store of dtrain's there says: " + answer));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
