#pragma once
/// @file
/// Connecting: one try to one address, and the patience that a rendezvous needs.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/seconds_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/resolve.hpp"

namespace DTRAIN_NAMESPACE::net {

/// A connection, or the errno that kept it from being (ETIMEDOUT at the deadline).
struct ConnectResult {
  std::optional<Connection> connection;
  int error = 0;
};

/// One try. @throws Error (posix) if no socket can be made
inline async::Task<ConnectResult> connect(async::EventLoop& loop, Endpoint endpoint, Deadline deadline) {
  ConnectResult result;
  Descriptor socket(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket) {
    result.error = errno;
    if (result.error != EAFNOSUPPORT) {
      throw posix_error(result.error, "making a socket to connect to " + to_string(endpoint));
    }
    co_return std::move(result);
  }
  result.error = ::connect(socket.get(), endpoint.data(), endpoint.size()) == 0 ? 0 : errno;
  if (result.error == EINPROGRESS || result.error == EINTR) {
    const async::Ready ready = co_await loop.writable(socket.get(), deadline);
    socklen_t size = sizeof result.error;
    if (ready == async::Ready::timed_out) {
      result.error = ETIMEDOUT;
    } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &result.error, &size) != 0) {
      result.error = errno;
    }
  }
  if (result.error == 0) {
    Connection connection(loop, std::move(socket));
    if (connection.local() == connection.peer()) {
      result.error = ECONNREFUSED;  // TCP's simultaneous open with itself, from a port that happened to be the same
    } else {
      result.connection.emplace(std::move(connection));
    }
  }
  co_return std::move(result);
}

namespace detail {

/// Reasons that the next moment may change: the server is not there yet, or the way to it.
inline bool worth_retrying(int error) noexcept {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EAGAIN: return true;
    default: return false;
  }
}

}  // namespace detail

/// One try of each address in turn. @param one_try how long each may take
/// @returns the first connection, or of the reasons the one that tells most: "::1 is not there" says less about
/// localhost than "127.0.0.1 refused"
inline async::Task<ConnectResult> connect_to_one_of(async::EventLoop& loop, std::vector<Endpoint> endpoints,
                                                    Deadline deadline, std::chrono::milliseconds one_try) {
  int error = ETIMEDOUT;
  for (const Endpoint& endpoint : endpoints) {
    ConnectResult result = co_await connect(loop, endpoint, earlier(deadline, Deadline::after(one_try)));
    if (result.connection) {
      co_return std::move(result);
    }
    const bool tells = result.error != EADDRNOTAVAIL && result.error != EAFNOSUPPORT;
    error = tells || &endpoint == endpoints.data() ? result.error : error;
  }
  co_return ConnectResult{std::nullopt, error};
}

/// Connects to a host that may not listen, or have a known name, yet: resolves it, tries its addresses in order, and
/// begins again after a growing delay, until the deadline.
/// @throws Error (refused) for a name that stays unknown, or can be none; Error (posix), with the host, the port, the
/// last reason and the time spent, when the deadline passes or at once for what trying again cannot change
inline async::Task<Connection> connect_with_backoff(async::EventLoop& loop, std::string host, std::uint16_t port,
                                                    Deadline deadline, Backoff backoff = {}) {
  const Deadline::Clock::time_point begin = Deadline::Clock::now();
  for (std::chrono::milliseconds delay = backoff.first;; delay = std::min(2 * delay, backoff.longest)) {
    async::Task<std::vector<Endpoint>> lookup = resolve_with_backoff(loop, host, port, deadline, backoff);
    std::vector<Endpoint> endpoints = co_await std::move(lookup);
    async::Task<ConnectResult> attempt = connect_to_one_of(loop, std::move(endpoints), deadline, backoff.one_try);
    ConnectResult result = co_await std::move(attempt);
    if (result.connection) {
      co_return *std::move(result.connection);
    }
    const Deadline::Clock::time_point now = Deadline::Clock::now();
    const Error error = posix_error(
        result.error,
        "connecting to " + host + " port " + std::to_string(port) + ", tried for " + seconds_text(now - begin),
        "check that rank 0 or its launcher runs there, and MASTER_ADDR and MASTER_PORT");
    if (!detail::worth_retrying(result.error) || now + delay >= deadline.instant()) {
      throw error;
    }
    if (backoff.on_failure) {
      backoff.on_failure(error.what());
    }
    co_await loop.sleep_for(delay);
  }
}

}  // namespace DTRAIN_NAMESPACE::net
