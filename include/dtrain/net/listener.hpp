#pragma once
/// @file
/// net::Listener: a TCP socket that accepts connections.

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/close_on_fork.hpp"
#include "dtrain/core/process/open_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/interfaces.hpp"

namespace DTRAIN_NAMESPACE::net {

/// Accepts connections. Lifetime: outlives the tasks of accept(), and does not move while they run; the loop outlives
/// it. Threads: the loop's.
class Listener {
 public:
  /// Listens at an address of this machine; for port 0 the system chooses one (see local()). SO_REUSEADDR is set.
  /// @throws Error (posix), whose message names the port and a remedy
  static Listener bind(async::EventLoop& loop, const SocketAddress& address, int backlog = default_backlog) {
    return open(loop, address, backlog, false);
  }

  /// Listens at every address, IPv4 and IPv6 on one socket; IPv4 alone on a machine without IPv6.
  static Listener bind_any(async::EventLoop& loop, std::uint16_t port, int backlog = default_backlog) {
    try {
      return open(loop, SocketAddress::any_v6(port), backlog, true);
    } catch (const Error& error) {
      if (!is_missing(error)) {
        throw;
      }
    }
    return open(loop, SocketAddress::any_v4(port), backlog, false);
  }

  /// Listens at the loopback address: 127.0.0.1, or ::1 on a host with only that.
  /// @throws Error (posix) as bind; on a host with neither, the message says how to bring the interface up
  static Listener bind_loopback(async::EventLoop& loop, std::uint16_t port, int backlog = default_backlog) {
    for (const SocketAddress& address : {SocketAddress::loopback_v4(port), SocketAddress::loopback_v6(port)}) {
      try {
        if (!is_down(address) && !is_unreachable(address)) {
          return open(loop, address, backlog, false);
        }
      } catch (const Error& error) {
        if (!is_missing(error)) {
          throw;
        }
      }
    }
    throw posix_error(EADDRNOTAVAIL, "listening at 127.0.0.1 or ::1",
                      "this host's loopback interface is down or has no address; bring it up: ip link set lo up");
  }

  /// Returns the next connection, or nullopt at the deadline. Skips a peer that disconnects before it is accepted.
  /// After any other failure that may pass (no descriptors are left, an error of the new connection's network), it
  /// tries again at least every 20 ms, and logs one warning.
  /// @throws Error (posix) for a failure that does not pass: a security policy, or a programming error
  async::Task<std::optional<Connection>> accept(Deadline deadline) {
    for (int failures = 0;;) {  // counts failures in sequence
      Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const int error = errno;
      if (socket) {
        co_return Connection(*loop_, std::move(socket));
      }
      async::WakeReason ready = async::WakeReason::ready;
      if (error == EAGAIN || error == EWOULDBLOCK) {
        failures = 0;
        ready = co_await loop_->readable(socket_.get(), deadline);
      } else {
        require_passing(error, ++failures);
        co_await loop_->sleep_for(std::chrono::milliseconds(std::min(failures, 20)));
        ready = deadline.passed() ? async::WakeReason::timed_out : async::WakeReason::ready;
      }
      if (ready == async::WakeReason::timed_out) {
        co_return std::nullopt;
      }
    }
  }

  /// The address that it listens at, with the port that the system chose.
  SocketAddress local() const noexcept { return local_; }
  std::uint16_t port() const noexcept { return local_.port(); }

  /// Whether bind() failed because this machine or its kernel lacks the address.
  static bool is_missing(const Error& error) noexcept {
    const int reason = error.code().value();
    return reason == EAFNOSUPPORT || reason == EADDRNOTAVAIL || reason == EPROTONOSUPPORT;
  }

 private:
  static constexpr int default_backlog = 4096;  // the system lowers it to its own bound

  Listener(async::EventLoop& loop, Descriptor socket, const SocketAddress& local)
      : loop_(&loop), socket_(CloseOnForkDescriptor(std::move(socket))), local_(local) {}

  static Listener open(async::EventLoop& loop, const SocketAddress& address, int backlog, bool dual_stack) {
    const std::string doing = dual_stack ? format_text("listening at port {} of every address", {address.port()})
                                         : format_text("listening at {}", {to_string(address)});
    Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
    if (!socket) {
      throw_errno(doing);
    }
    const int on = 1;
    const int v6_only = dual_stack ? 0 : 1;
    if (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (address.is_v6() && ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only) != 0)) {
      throw_errno(doing);
    }
    if (::bind(socket.get(), address.data(), address.size()) != 0 || ::listen(socket.get(), backlog) != 0) {
      throw_errno("{}", {doing}, remedy(errno));
    }
    const std::optional<SocketAddress> local = SocketAddress::of_socket(socket.get(), &::getsockname);
    if (!local) {
      throw_errno(doing);
    }
    return {loop, std::move(socket), *local};
  }

  /// Logs one warning about a failure that accept() waits out, unless it is a peer that disconnected early.
  /// @param failures in sequence, this one included @throws Error (posix) if the failure does not pass
  DTRAIN_NOT_INLINED void require_passing(int error, int failures) {
    constexpr int several = 20;
    const bool is_exhausted = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
    if (!is_lasting(error) && (has_warned_ || (!is_exhausted && failures < several))) {
      return;
    }
    const std::string doing = format_text("accepting a connection at {}", {to_string(local_)});
    std::string what_to_do;
    if (error == EPERM || error == EACCES || error == ENOSYS) {
      what_to_do =
          "a security policy of this machine (SELinux, AppArmor, a container's seccomp profile) forbids it: "
          "allow this program to accept connections";
    } else if (is_exhausted) {
      what_to_do = format_text(
          "clients that connect wait; this process may have {} files open: raise that (ulimit -n), or close some",
          {open_files_limit().value_or(0)});
    } else {
      what_to_do = "clients that connect wait until the next try";
    }
    const Error problem = posix_error(error, doing, what_to_do);
    if (is_lasting(error)) {
      throw problem;
    }
    has_warned_ = true;
    log(LogLevel::warning, problem.what());
  }

  /// Whether every later call also fails with this errno. EOPNOTSUPP is not such: it is one of the errors of a new
  /// connection that accept() passes on. Source: accept(2) in Linux, "Error handling".
  static bool is_lasting(int error) noexcept {
    switch (error) {
      case EPERM:
      case EACCES:
      case ENOSYS:
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
      case EFAULT: return true;
      default: return false;
    }
  }

  static const char* remedy(int error) noexcept {
    switch (error) {
      case EADDRINUSE: return "another program uses this port: choose another with MASTER_PORT or --master-port";
      case EADDRNOTAVAIL: return "the address is not one of this machine's: set MASTER_ADDR to one that is";
      case EACCES: return "ports below 1024 need privileges: choose another with MASTER_PORT or --master-port";
      default: return "";
    }
  }

  async::EventLoop* loop_;
  CloseOnForkDescriptor socket_;
  SocketAddress local_;
  bool has_warned_ = false;  ///< whether a failure to accept was logged
};

}  // namespace DTRAIN_NAMESPACE::net
