#pragma once
/// @file
/// Listeners of a store, and conflicts over a port.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connect.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/net/resolve_host.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/client/slow_notice.hpp"
#include "dtrain/rendezvous/server/listen_addresses.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// A listener; nothing if the address is not this machine's, or is one of a kind that its kernel lacks (IPv6), or is an
/// address of `host`, a name, that no socket can have: an IPv6 link-local address without an interface.
/// @throws Error (posix) with a sentence about the port
inline std::optional<net::Listener> try_listen(async::EventLoop& loop, const std::string& host,
                                               const net::SocketAddress& endpoint) {
  try {
    return endpoint.is_any() && endpoint.is_v6() ? net::Listener::bind_any(loop, endpoint.port())  // IPv4 as well
                                                 : net::Listener::bind(loop, endpoint);
  } catch (const Error& error) {
    const bool is_numeric = net::SocketAddress::from_numeric(host, 0).has_value();
    if (net::Listener::is_missing(error) || (error.code().value() == EINVAL && endpoint.is_v6() && !is_numeric)) {
      return std::nullopt;
    }
    if (error.code().value() == EADDRINUSE) {
      throw Error(error.code(),
                  format_text("port {} on {} is in use by another program, or by another rank 0, and the job's store "
                              "is to listen there; choose another with MASTER_PORT or --master-port",
                              {endpoint.port(), host}));
    }
    throw;
  }
}

/// The listeners by the rules of listen_for_ranks. @param resolved addresses of `host`; none if a setting names others
inline std::vector<net::Listener> open_listeners(async::EventLoop& loop, const std::string& host, std::uint16_t port,
                                                 const std::vector<net::SocketAddress>& resolved,
                                                 const ListenOptions& options) {
  std::vector<net::Listener> listeners;
  const std::string source = options.interface ? format_text("DTRAIN_INTERFACE={}", {*options.interface})
                                               : format_text("the master address {}", {host});
  const auto listen = [&](const net::SocketAddress& address) {
    const net::SocketAddress endpoint = address.with_port(listeners.empty() ? port : listeners.front().port());
    const bool is_new = std::none_of(listeners.begin(), listeners.end(),
                                     [&](const net::Listener& each) { return each.local() == endpoint; });
    require_secret_for_any(endpoint, source, options.has_secret);
    std::optional<net::Listener> listener = is_new ? try_listen(loop, host, endpoint) : std::nullopt;
    if (listener) {
      listeners.push_back(*std::move(listener));
    }
  };
  if (options.interface) {
    for (const net::SocketAddress& each : named_addresses(*options.interface, port)) {
      listen(each);
    }
    if (listeners.empty()) {
      throw_error(Errc::usage, "{} is no address of this machine", {source});
    }
    return listeners;
  }
  const bool loopback = net::is_loopback_host(host);
  const std::vector<net::InterfaceAddress> own = own_addresses();
  for (const bool bridges : {false, true}) {  // systemd's resolver gives every address of the host as its name's
    for (const net::SocketAddress& each : resolved) {
      if (loopback ? listeners.empty() : !each.is_loopback() && is_of_bridge(each, own) == bridges) {
        listen(each);
      }
    }
    if (!listeners.empty()) {
      return listeners;
    }
  }
  if (options.has_secret) {
    listeners.push_back(net::Listener::bind_any(loop, port));
  } else {
    for (const net::SocketAddress& each : resolve_candidates(host, resolved, outward_addresses())) {
      listen(each);
    }
  }
  if (listeners.empty()) {
    throw_error(
        Errc::usage,
        "the job's store is to listen at {}, which is no address of this machine; set MASTER_ADDR to one that is",
        {host});
  }
  return listeners;
}

/// open_listeners at the first free one of `ports` ports from `port` on.
inline std::vector<net::Listener> open_listeners_at_free_port(async::EventLoop& loop, const std::string& host,
                                                              std::uint16_t port, std::uint16_t ports,
                                                              const std::vector<net::SocketAddress>& resolved,
                                                              const ListenOptions& options) {
  for (std::uint16_t offset = 0;; ++offset) {
    try {
      return open_listeners(loop, host, static_cast<std::uint16_t>(port + offset), resolved, options);
    } catch (const Error& error) {
      if (error.code().value() != EADDRINUSE || offset + 1 >= ports) {
        throw;
      }
    }
  }
}

/// The addresses of the listeners.
inline std::vector<net::SocketAddress> addresses_of(const std::vector<net::Listener>& listeners) {
  std::vector<net::SocketAddress> addresses;
  for (const net::Listener& each : listeners) {
    addresses.push_back(each.local());
  }
  return addresses;
}

/// Warns if `host` means a loopback address here and other hosts may come by an address without a listener.
inline void warn_of_loopback_name(const std::string& host, const std::vector<net::Listener>& listeners) {
  const std::vector<net::SocketAddress> addresses = addresses_of(listeners);
  const std::string unused = means_loopback(host, addresses) ? unused_interfaces(addresses, own_addresses()) : "";
  if (!unused.empty()) {
    log(LogLevel::warning, format_text("the job's store listens at {}; {} means a loopback address on this host. {}",
                                       {places_text(addresses), host, unused_remedy(unused, "this host")}));
  }
}

/// The sentence of a dtrain store that holds a port; empty if it gave none.
inline std::string answer_of_holder(const HandshakeResult& result) {
  if (const Refused* refused = std::get_if<Refused>(&result)) {
    return refused->sentence;
  }
  const Failure* failure = std::get_if<Failure>(&result);
  return failure != nullptr ? failure->cause.sentence() : std::string();
}

}  // namespace detail

/// Listens for the ranks of a job. The first rule that applies decides; every address (0.0.0.0, ::) requires a secret:
/// - DTRAIN_INTERFACE is set: that address, or all addresses of that interface.
/// - `host` is a loopback host: the loopback address.
/// - `host` resolves to addresses of this machine that are not loopback: all of them, and those of a bridge for its
///   containers only if there are no others.
/// - The job has a secret: every address.
/// - Else: outward_addresses(), and the loopback addresses to which `host` resolves here. If other hosts may come by
///   another interface, a warning says so at once.
/// @param ports number of ports, from `port` on; the first free one is taken
/// @throws Error (posix): "port 29500 on host-a is in use ..."; Error (refused) if `host` does not resolve by the
/// deadline; Error (usage) if it needed every address without a secret, or DTRAIN_INTERFACE is not this machine's
inline async::Task<std::vector<net::Listener>> listen_for_ranks(async::EventLoop& loop, std::string host,
                                                                std::uint16_t port, Deadline deadline,
                                                                ListenOptions options, std::uint16_t ports = 1) {
  std::vector<net::SocketAddress> resolved;
  if (!options.interface) {
    SlowNotice notice(loop, format_text("opening the job's store at {}:{}", {host, port}),
                      "the name service has not answered");
    net::Backoff backoff;
    backoff.observer = &notice;
    async::Task<std::vector<net::SocketAddress>> lookup =
        net::resolve_with_backoff(loop, host, port, deadline, backoff);
    resolved = co_await std::move(lookup);
  }
  std::vector<net::Listener> listeners =
      detail::open_listeners_at_free_port(loop, host, port, ports, resolved, options);
  if (options.several_hosts) {
    detail::warn_of_loopback_name(host, listeners);
  }
  co_return std::move(listeners);
}

/// Where a store listens, for the error of a join timeout. @pre there are listeners
inline std::string listens_at(const std::string& who, const std::vector<net::Listener>& listeners,
                              const std::string& master_host) {
  return detail::listens_at(who, detail::addresses_of(listeners), master_host, detail::own_addresses());
}

/// As listen_for_ranks, for a rank. If a dtrain store holds the port, this process sends it a Join, as the process that
/// wanted to open one there. Its answer ends the error sentence. If nothing distinguishes the two jobs, the store's job
/// fails (JobState::claim).
/// @param join that of this process
inline async::Task<std::vector<net::Listener>> listen_or_query_holder(async::EventLoop& loop, StoreAddress address,
                                                                      ListenOptions options, Join join,
                                                                      Deadline deadline) {
  constexpr std::chrono::milliseconds reply_timeout{1500};
  std::optional<Error> taken;
  try {
    async::Task<std::vector<net::Listener>> listening =
        listen_for_ranks(loop, address.host, address.port, deadline, options, address.ports);
    std::vector<net::Listener> listeners = co_await std::move(listening);
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
  join.process = ::getpid();
  const HandshakeRequest request = std::move(join);
  HandshakeResult result;
  try {
    async::Task<net::Connection> connecting = net::connect_with_backoff(loop, address.host, address.port, soon);
    net::Connection connection = co_await std::move(connecting);
    FramedConnection framed(std::move(connection));
    result = co_await handshake(framed, address, request, "asking", soon, soon);
  } catch (const Error&) {  // another program, or a store with another secret
  }
  const std::string answer = detail::answer_of_holder(result);
  if (answer.empty()) {
    throw *taken;
  }
  throw Error(taken->code(), taken->what() + ("; the store of dtrain's there says: " + answer));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
