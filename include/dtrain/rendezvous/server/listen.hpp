#pragma once
/// @file
/// Listeners of a store: their addresses, from DTRAIN_INTERFACE or the master address, and conflicts over a port.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connect.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/net/resolve_host.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/client/slow_notice.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct ListenOptions {
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: an interface's name, or an address
  bool has_secret = false;                  ///< of the job: reaching the port is then not enough to join
};

namespace detail {

/// A listener; nothing if the address is not this machine's. @throws Error (posix) with a sentence about the port
inline std::optional<net::Listener> try_listen(async::EventLoop& loop, const std::string& host,
                                               const net::SocketAddress& endpoint) {
  try {
    return net::Listener::bind(loop, endpoint);
  } catch (const Error& error) {
    if (error.code().value() == EADDRNOTAVAIL) {
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

/// DTRAIN_INTERFACE as an address, or the addresses of the interface that it names. @throws Error (usage) for neither
inline std::vector<net::SocketAddress> named_addresses(const std::string& name, std::uint16_t port) {
  if (const std::optional<net::SocketAddress> address = net::SocketAddress::from_numeric(name, port)) {
    return {*address};
  }
  std::vector<net::SocketAddress> found;
  std::string there;
  for (const net::InterfaceAddress& each : net::interface_addresses()) {
    if (each.interface == name) {
      found.push_back(each.address.with_port(port));
    }
    append_text(there, "{}{} ({})", {there.empty() ? "" : ", ", each.interface, each.address.host()});
  }
  if (found.empty()) {
    throw_error(Errc::usage,
                "DTRAIN_INTERFACE={} is neither an address nor an interface of this machine with one; there are: {}",
                {name, there});
  }
  return found;
}

/// Requires a secret for every interface. @param source for the sentence: "DTRAIN_INTERFACE=::" @throws Error (usage)
inline void require_secret_for_any(const net::SocketAddress& endpoint, const std::string& source, bool has_secret) {
  if (!has_secret && endpoint.unmapped().is_any()) {
    throw_error(Errc::usage,
                "{} means every interface of this machine, and to listen at all of them the job's store needs a "
                "secret; name one address or interface, or set the same DTRAIN_SECRET for all of the job",
                {source});
  }
}

/// Listening addresses, without a secret, for a host that is none of this machine's outward addresses. Its name may
/// mean a loopback address here and another one elsewhere (Debian's 127.0.1.1), or it is forwarded here (a service).
/// @param outward address of the default route
/// @throws Error (usage) if there is no candidate: the store would have to listen everywhere, for every process
inline std::vector<net::SocketAddress> resolve_candidates(const std::string& host,
                                                          const std::vector<net::SocketAddress>& resolved,
                                                          const std::optional<net::SocketAddress>& outward) {
  std::vector<net::SocketAddress> candidates;
  if (outward) {
    candidates.push_back(outward->with_port(resolved.front().port()));
  }
  std::copy_if(resolved.begin(), resolved.end(), std::back_inserter(candidates),
               [](const net::SocketAddress& each) { return each.is_loopback(); });
  if (candidates.empty()) {
    throw_error(Errc::usage,
                "the job's store is to listen at {}, which is no address of this machine, and to listen at all of its "
                "addresses the job needs a secret; set MASTER_ADDR to an address of this machine, or DTRAIN_INTERFACE, "
                "or the same DTRAIN_SECRET for all of the job",
                {host});
  }
  return candidates;
}

/// The listeners by the rules of listen_for_ranks. @param resolved addresses of `host`; none if a setting names others
inline std::vector<net::Listener> open_listeners(async::EventLoop& loop, const std::string& host, std::uint16_t port,
                                                 const std::vector<net::SocketAddress>& resolved,
                                                 const ListenOptions& options) {
  std::vector<net::Listener> listeners;
  const std::string source = options.interface ? format_text("DTRAIN_INTERFACE={}", {*options.interface})
                                               : format_text("the master address {}", {host});
  const auto listen = [&](const net::SocketAddress& address) {
    const net::SocketAddress endpoint = address.with_port(port);
    require_secret_for_any(endpoint, source, options.has_secret);
    std::optional<net::Listener> listener = try_listen(loop, host, endpoint);
    if (listener) {
      listeners.push_back(*std::move(listener));
    }
    return !listeners.empty();
  };
  if (options.interface) {
    for (const net::SocketAddress& each : named_addresses(*options.interface, port)) {
      if (listen(each)) {
        return listeners;
      }
    }
    throw_error(Errc::usage, "{} is no address of this machine", {source});
  }
  const bool loopback = net::is_loopback_host(host);
  for (const net::SocketAddress& each : resolved) {
    if ((loopback || !each.is_loopback()) && listen(each)) {
      return listeners;
    }
  }
  if (options.has_secret) {
    listeners.push_back(net::Listener::bind_any(loop, port));
  } else {
    for (const net::SocketAddress& each : resolve_candidates(host, resolved, net::address_of_default_route())) {
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
/// - DTRAIN_INTERFACE is set: its first address that is this machine's.
/// - `host` is a loopback host: the loopback address.
/// - `host` resolves to addresses of this machine that are not loopback: the first of them.
/// - The job has a secret: every address.
/// - Else: the address of the default route, and the loopback addresses to which `host` resolves here.
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
  co_return detail::open_listeners_at_free_port(loop, host, port, ports, resolved, options);
}

/// Where rank 0 listens, beside the address that the ranks were given, for the error of a join timeout. The two differ
/// where the given address is forwarded to this host, or is wrong. @pre there are listeners @throws Error (posix)
inline std::string listens_at(const std::vector<net::Listener>& listeners, const std::string& master_host) {
  std::string places;
  for (const net::Listener& listener : listeners) {
    const net::SocketAddress local = listener.local();
    places += (places.empty() ? "" : " and ") +
              (local.is_any() ? format_text("port {} of every address", {local.port()}) : to_string(local));
  }
  const std::optional<net::SocketAddress> given = net::SocketAddress::from_numeric(master_host, 0);
  bool is_elsewhere = given && !given->is_loopback() && !given->is_any();
  if (is_elsewhere) {
    for (const net::InterfaceAddress& each : net::interface_addresses()) {
      is_elsewhere = is_elsewhere && each.address.host() != given->unmapped().host();
    }
  }
  return format_text("rank 0 listens at {}, and MASTER_ADDR is {}{}",
                     {places, master_host, is_elsewhere ? ", which is no address of its host" : ""});
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
