#pragma once
/// @file
/// connect(): one attempt to one address, and attempts with back-off until a deadline.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/text/duration_text.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/resolve_host.hpp"

namespace DTRAIN_NAMESPACE::net {

/// A connection, or the errno of its failure (ETIMEDOUT at the deadline).
struct ConnectResult {
  std::optional<Connection> connection;
  int error = 0;
};

/// One attempt. @throws Error (posix) if no socket can be made
inline async::Task<ConnectResult> connect(async::EventLoop& loop, SocketAddress address, Deadline deadline) {
  ConnectResult result;
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket) {
    result.error = errno;
    if (result.error != EAFNOSUPPORT) {
      throw_posix(result.error, "making a socket to connect to {}", {to_string(address)});
    }
    co_return std::move(result);
  }
  result.error = ::connect(socket.get(), address.data(), address.size()) == 0 ? 0 : errno;
  if (result.error == EINPROGRESS || result.error == EINTR) {
    const async::WakeReason ready = co_await loop.writable(socket.get(), deadline);
    socklen_t size = sizeof result.error;
    if (ready == async::WakeReason::timed_out) {
      result.error = ETIMEDOUT;
    } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &result.error, &size) != 0) {
      result.error = errno;
    }
  }
  if (result.error == 0) {
    Connection connection(loop, std::move(socket));
    if (connection.local() == connection.peer()) {
      result.error = ECONNREFUSED;  // TCP's simultaneous open connected the socket to itself
    } else {
      result.connection.emplace(std::move(connection));
    }
  }
  co_return std::move(result);
}

namespace detail {

/// Whether a later attempt may succeed: the server, or the route to it, may not be up yet.
inline bool is_retriable(int error) noexcept {
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

/// Tells the observer that the connection is tried again.
/// @throws Error (posix) if another attempt cannot succeed, or it is too late for it
inline void note_unconnected(int number, const std::string& host, std::uint16_t port, Deadline::Clock::time_point begin,
                             Deadline::Clock::time_point last, const Backoff& backoff) {
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  const bool loopback_is_down =
      is_loopback_host(host) && number == ENETUNREACH && is_unreachable(SocketAddress::loopback_v4(port));
  if (backoff.connects_once && !loopback_is_down) {  // the caller has other ports, and adds how long and what to do
    throw posix_error(number, format_text("connecting to {}:{}", {host, port}));
  }
  const char* const what_to_do =
      loopback_is_down ? "this host's loopback interface is down; bring it up: ip link set lo up"
      : number == EPERM || number == EACCES
          ? "a security policy or a firewall of this machine forbids it: allow this program to connect"
          : "check that rank 0 or its launcher runs there, MASTER_ADDR and MASTER_PORT, and DTRAIN_INTERFACE on that "
            "host";
  const Error error = posix_error(
      number, format_text("connecting to {} port {}, tried for {}", {host, port, duration_text(now - begin)}),
      what_to_do);
  if (loopback_is_down || !is_retriable(number) || now >= last) {
    throw error;
  }
  if (backoff.observer != nullptr) {
    backoff.observer->note(error.what());
  }
}

}  // namespace detail

/// One attempt to each address in turn. @param attempt_timeout of each attempt
/// @returns the first connection, or the most specific error: for localhost the refusal by 127.0.0.1, not a missing ::1
inline async::Task<ConnectResult> connect_to_any(async::EventLoop& loop, std::vector<SocketAddress> addresses,
                                                 Deadline deadline, std::chrono::milliseconds attempt_timeout) {
  int error = ETIMEDOUT;
  for (const SocketAddress& address : addresses) {
    ConnectResult result = co_await connect(loop, address, earlier(deadline, Deadline::after(attempt_timeout)));
    if (result.connection) {
      co_return std::move(result);
    }
    const bool is_specific = result.error != EADDRNOTAVAIL && result.error != EAFNOSUPPORT;
    error = is_specific || &address == addresses.data() ? result.error : error;
  }
  co_return ConnectResult{std::nullopt, error};
}

/// Connects to a host that may not listen yet, or whose name may not resolve yet: resolves the name, tries its
/// addresses in order, and retries with growing delays until the deadline.
/// @throws Error (refused) for a name that does not resolve, or is invalid; Error (posix) at the deadline, or at once
/// for an error that a retry cannot change: with the host, the port, the last reason and the time spent
inline async::Task<Connection> connect_with_backoff(async::EventLoop& loop, std::string host, std::uint16_t port,
                                                    Deadline deadline, Backoff backoff = {}) {
  const Deadline::Clock::time_point begin = Deadline::Clock::now();
  for (std::chrono::milliseconds delay = backoff.first;; delay = std::min(2 * delay, backoff.longest)) {
    async::Task<std::vector<SocketAddress>> lookup = resolve_with_backoff(loop, host, port, deadline, backoff);
    std::vector<SocketAddress> addresses = co_await std::move(lookup);
    async::Task<ConnectResult> attempt = connect_to_any(loop, std::move(addresses), deadline, backoff.attempt_timeout);
    ConnectResult result = co_await std::move(attempt);
    if (result.connection) {
      co_return *std::move(result.connection);
    }
    detail::note_unconnected(result.error, host, port, begin, deadline.instant() - delay, backoff);
    co_await loop.sleep_for(delay);
  }
}

}  // namespace DTRAIN_NAMESPACE::net
