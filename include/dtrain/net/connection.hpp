#pragma once
/// @file
/// net::Connection: a connected, non-blocking TCP socket on an EventLoop. connect_with_backoff(): attempts to a host
/// until a deadline.

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/resolve_host.hpp"
#include "dtrain/net/socket_address.hpp"

namespace DTRAIN_NAMESPACE::net {

/// How a send or receive ended. These outcomes are expected, so they are values and not exceptions.
enum class IoStatus : std::uint8_t {
  ok = 1,
  closed,     ///< the connection has ended: closed by the peer, reset, or given up by the system
  timed_out,  ///< the deadline came first
};

/// Result of one send or receive.
struct IoResult {
  IoStatus status = IoStatus::ok;
  std::size_t bytes = 0;  ///< transferred, also if the status is not ok
  int error = 0;          ///< the errno that ended the connection; 0 if the peer closed it in order

  bool ok() const noexcept { return status == IoStatus::ok; }

  /// "connection closed by the peer", "Connection reset by peer", "the deadline passed".
  std::string reason() const {
    switch (status) {
      case IoStatus::ok: return "ok";
      case IoStatus::timed_out: return "the deadline passed";
      case IoStatus::closed: break;
    }
    return error == 0 ? "connection closed by the peer" : std::generic_category().message(error);
  }
};

/// No connection could be made by the deadline. The other host or the network may be the cause, so a later attempt may
/// succeed. An Error of the same code that is no Unreachable is this process's own, for example EAGAIN of a thread's
/// start.
class Unreachable final : public Error {
 public:
  /// Written out: nvcc 13.0 ends with an internal error at inherited constructors with a default argument.
  Unreachable(std::error_code code, std::string sentence, SourceLocation where = SourceLocation::current())
      : Error(code, std::move(sentence), where) {}
};

namespace detail {

/// Errors that the network or the peer can cause; on a connection, any other is a programming error.
inline bool is_network_error(int error) noexcept {
  switch (error) {
    case ECONNRESET:
    case ECONNABORTED:
    case ECONNREFUSED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case ENOTCONN: return true;
    default: return false;
  }
}

/// Whether a later attempt may succeed: the server, or the route to it, may not be up yet.
inline bool is_retriable(int error) noexcept {
  return is_network_error(error) || error == EADDRNOTAVAIL || error == EAFNOSUPPORT || error == EAGAIN;
}

/// Reports that the connection is tried again.
/// @throws Unreachable if it is too late for another attempt; Error (posix) if none can succeed
inline void note_unconnected(int number, const std::string& host, std::uint16_t port, Deadline::Clock::time_point begin,
                             Deadline::Clock::time_point last, const Backoff& backoff) {
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  const bool loopback_is_down =
      is_loopback_host(host) && number == ENETUNREACH && is_unreachable(SocketAddress::loopback_v4(port));
  if (backoff.connects_once && !loopback_is_down) {  // the caller tries other ports, and adds the time and the remedy
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
  if (loopback_is_down || !is_retriable(number)) throw error;
  if (now >= last) throw Unreachable(error.code(), error.what());
  backoff.on_retry(error.what());
}

}  // namespace detail

/// Sends small messages at once (TCP_NODELAY), enables keepalive, and never raises SIGPIPE. One coroutine may read
/// while one writes. Lifetime: stays open while a coroutine waits for it; the loop outlives it. Threads: the loop's.
class Connection {
 public:
  /// Takes over a connected, non-blocking socket. @throws Error (posix) if the system rejects an option
  Connection(async::EventLoop& loop, Descriptor socket) : loop_(&loop), socket_(std::move(socket)) {
    set_option(IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
    set_option(SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  }

  /// Reads available bytes without waiting; timed_out if the read would block.
  IoResult try_read(std::span<std::byte> buffer) {
    for (;;) {
      const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (count > 0 || buffer.empty()) {
        return {IoStatus::ok, static_cast<std::size_t>(std::max<ssize_t>(count, 0)), 0};
      }
      if (count == 0) {
        return {IoStatus::closed, 0, 0};
      }
      if (errno != EINTR) {
        return failure(errno, "reading from ");
      }
    }
  }

  /// Writes as many bytes as possible without waiting; timed_out if the write would block.
  IoResult try_write(std::span<const std::byte> bytes) {
    for (;;) {
      const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        return {IoStatus::ok, static_cast<std::size_t>(count), 0};
      }
      if (errno != EINTR) {
        return failure(errno, "writing to ");
      }
    }
  }

  /// `co_await connection.readable(deadline)`: as EventLoop::readable.
  async::DescriptorAwaiter readable(Deadline deadline) noexcept { return loop_->readable(socket_.get(), deadline); }
  async::DescriptorAwaiter writable(Deadline deadline) noexcept { return loop_->writable(socket_.get(), deadline); }

  /// Sends probes every `interval` after `idle` of silence; ends the connection after `probes` unanswered ones.
  void set_keepalive(std::chrono::seconds idle, std::chrono::seconds interval, int probes) {
    set_option(IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(idle.count()), "TCP_KEEPIDLE");
    set_option(IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(interval.count()), "TCP_KEEPINTVL");
    set_option(IPPROTO_TCP, TCP_KEEPCNT, probes, "TCP_KEEPCNT");
  }

  /// Ends the connection if sent data stays unacknowledged for `timeout` (TCP_USER_TIMEOUT), 24 days at most.
  void set_user_timeout(std::chrono::milliseconds timeout) {
    const std::chrono::milliseconds longest(std::numeric_limits<int>::max());
    set_option(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min(timeout, longest).count()), "TCP_USER_TIMEOUT");
  }

  /// Addresses of both ends, IPv4 as IPv4 also on a dual-stack socket; 0.0.0.0:0 once disconnected.
  SocketAddress peer() const noexcept { return address(&::getpeername); }
  SocketAddress local() const noexcept { return address(&::getsockname); }

  /// Closes the sending direction: the peer reads the end of the stream after the bytes written. Reading continues.
  void shutdown_write() noexcept { static_cast<void>(::shutdown(socket_.get(), SHUT_WR)); }

  /// Closes the socket. @pre no coroutine waits for the connection, and none uses it afterwards
  void close() noexcept { socket_.reset(); }

  int descriptor() const noexcept { return socket_.get(); }
  async::EventLoop& loop() const noexcept { return *loop_; }

 private:
  DTRAIN_NOT_INLINED IoResult failure(int error, const char* doing) const {
    if (error == EAGAIN || error == EWOULDBLOCK) {
      return {IoStatus::timed_out, 0, 0};
    }
    if (!detail::is_network_error(error)) {
      throw_posix(error, "{}{}", {doing, to_string(peer())});
    }
    return {IoStatus::closed, 0, error};
  }

  void set_option(int level, int option, int value, const char* name) {
    if (::setsockopt(socket_.get(), level, option, &value, sizeof value) != 0) {
      throw_errno("setting {} to {} on a connection", {name, value});
    }
  }

  SocketAddress address(SocketAddress::End end) const noexcept {
    return SocketAddress::of_socket(socket_.get(), end).value_or(SocketAddress{}).unmapped();
  }

  async::EventLoop* loop_;
  Descriptor socket_;
};

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
/// @throws Error (refused) for a name that does not resolve, or is invalid; Unreachable at the deadline, Error (posix)
/// at once for an error that a retry cannot change: with the host, the port, the last reason and the time spent
inline async::Task<Connection> connect_with_backoff(async::EventLoop& loop, std::string host, std::uint16_t port,
                                                    Deadline deadline, Backoff backoff = {}) {
  const Deadline::Clock::time_point begin = Deadline::Clock::now();
  int error = 0;  // the last attempt's
  for (std::chrono::milliseconds delay = backoff.first;; delay = std::min(2 * delay, backoff.longest)) {
    std::vector<SocketAddress> addresses;
    try {
      async::Task<std::vector<SocketAddress>> lookup = resolve_with_backoff(loop, host, port, deadline, backoff);
      addresses = co_await std::move(lookup);
    } catch (const Error&) {
      if (error == 0 || !deadline.passed()) throw;
      detail::note_unconnected(error, host, port, begin, begin, backoff);  // throws: it was too late to resolve again
    }
    async::Task<ConnectResult> attempt = connect_to_any(loop, std::move(addresses), deadline, backoff.attempt_timeout);
    ConnectResult result = co_await std::move(attempt);
    if (result.connection) {
      co_return *std::move(result.connection);
    }
    error = result.error;
    detail::note_unconnected(error, host, port, begin, deadline.instant() - delay, backoff);
    co_await loop.sleep_for(delay);
  }
}

}  // namespace DTRAIN_NAMESPACE::net
