#pragma once
/// @file
/// Connecting: one try to one address, and the patience that a rendezvous needs.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/seconds_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/resolve.hpp"

namespace DTRAIN_NAMESPACE::net {

/// A connection, or the errno that kept it from being (ETIMEDOUT at the deadline).
struct ConnectResult {
  std::optional<Connection> connection;
  int error = 0;
};

/// How connect_with_backoff waits between tries.
struct Backoff {
  std::chrono::milliseconds first{10};
  std::chrono::milliseconds longest{1000};
  std::chrono::milliseconds one_try{5000};         ///< for an address that does not answer at all
  std::chrono::milliseconds unresolved_for{5000};  ///< how long a name may stay unknown
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

/// Connects to a host that may not listen yet: resolves it, tries its addresses in order, and begins again after a
/// growing delay, until the deadline.
/// @throws Error (refused) for a name that stays unknown; Error (posix), with the host, the port, the last reason and
/// the time spent, when the deadline passes or at once for what trying again cannot change
inline async::Task<Connection> connect_with_backoff(async::EventLoop& loop, std::string host, std::uint16_t port,
                                                    Deadline deadline, Backoff backoff = {}) {
  const Deadline::Clock::time_point begin = Deadline::Clock::now();
  const Deadline name_deadline = earlier(deadline, Deadline::at(begin + backoff.unresolved_for));
  int last_error = ETIMEDOUT;
  bool known = false;
  std::chrono::milliseconds delay = backoff.first;
  for (;; delay = std::min(2 * delay, backoff.longest)) {
    async::Task<Resolution> lookup = resolve(loop, host, port, known ? deadline : name_deadline);
    const Resolution resolution = co_await std::move(lookup);
    known = known || !resolution.endpoints.empty();
    if (!known && Deadline::Clock::now() + delay >= name_deadline.instant()) {
      throw unresolved_error(host, resolution.reason);
    }
    for (const Endpoint& endpoint : resolution.endpoints) {
      const Deadline try_deadline = earlier(deadline, Deadline::after(backoff.one_try));
      ConnectResult result = co_await connect(loop, endpoint, try_deadline);
      if (result.connection) {
        co_return std::move(*result.connection);
      }
      // "::1 is not there" says less about localhost than "127.0.0.1 refused"
      const bool telling = result.error != EADDRNOTAVAIL && result.error != EAFNOSUPPORT;
      last_error = telling || &endpoint == resolution.endpoints.data() ? result.error : last_error;
    }
    const bool hopeless = !resolution.endpoints.empty() && !detail::worth_retrying(last_error);
    if (hopeless || Deadline::Clock::now() + delay >= deadline.instant()) {
      const std::string spent = seconds_text(Deadline::Clock::now() - begin);
      throw posix_error(last_error, "connecting to " + host + " port " + std::to_string(port) + ", tried for " + spent,
                        "check that rank 0 or its launcher runs there, and MASTER_ADDR and MASTER_PORT");
    }
    co_await loop.sleep_for(delay);
  }
}

}  // namespace DTRAIN_NAMESPACE::net
