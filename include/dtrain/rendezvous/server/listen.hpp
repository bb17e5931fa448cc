#pragma once
/// @file
/// Listening addresses of a store, from DTRAIN_INTERFACE or the master address.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/net/resolve_host.hpp"
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
    there += format_text("{}{} ({})", {there.empty() ? "" : ", ", each.interface, each.address.host()});
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

}  // namespace detail

/// Listens for the ranks of a job. The first rule that applies decides; every address (0.0.0.0, ::) requires a secret:
/// - DTRAIN_INTERFACE is set: its first address that is this machine's.
/// - `host` is a loopback host: the loopback address.
/// - `host` resolves to addresses of this machine that are not loopback: the first of them.
/// - The job has a secret: every address.
/// - Else: the address of the default route, and the loopback addresses to which `host` resolves here.
/// @throws Error (posix): "port 29500 on host-a is in use ..."; Error (refused) if `host` does not resolve by the
/// deadline; Error (usage) if it needed every address without a secret, or DTRAIN_INTERFACE is not this machine's
inline async::Task<std::vector<net::Listener>> listen_for_ranks(async::EventLoop& loop, std::string host,
                                                                std::uint16_t port, Deadline deadline,
                                                                ListenOptions options) {
  std::vector<net::Listener> listeners;
  const std::string source =
      options.interface ? "DTRAIN_INTERFACE=" + *options.interface : "the master address " + host;
  const auto listen = [&](const net::SocketAddress& endpoint) {
    detail::require_secret_for_any(endpoint, source, options.has_secret);
    std::optional<net::Listener> listener = detail::try_listen(loop, host, endpoint);
    if (listener) {
      listeners.push_back(*std::move(listener));
    }
    return !listeners.empty();
  };
  if (options.interface) {
    const std::vector<net::SocketAddress> interface_addresses = detail::named_addresses(*options.interface, port);
    if (!std::any_of(interface_addresses.begin(), interface_addresses.end(), listen)) {
      throw_error(Errc::usage, "{} is no address of this machine", {source});
    }
    co_return std::move(listeners);
  }
  SlowNotice notice(loop, format_text("opening the job's store at {}:{}", {host, port}),
                    "the name service has not answered");
  net::Backoff backoff;
  backoff.on_failure = [&notice](const std::string& why) { notice.note(why); };
  async::Task<std::vector<net::SocketAddress>> lookup = net::resolve_with_backoff(loop, host, port, deadline, backoff);
  const std::vector<net::SocketAddress> resolved = co_await std::move(lookup);
  const bool loopback = net::is_loopback_host(host);
  const bool found = std::any_of(resolved.begin(), resolved.end(), [&](const net::SocketAddress& endpoint) {
    return (loopback || !endpoint.is_loopback()) && listen(endpoint);
  });
  if (!found && options.has_secret) {
    listeners.push_back(net::Listener::bind_any(loop, port));
  } else if (!found) {
    const std::vector<net::SocketAddress> candidates =
        detail::resolve_candidates(host, resolved, net::address_of_default_route());
    std::for_each(candidates.begin(), candidates.end(), listen);
  }
  if (listeners.empty()) {
    throw_error(
        Errc::usage,
        "the job's store is to listen at {}, which is no address of this machine; set MASTER_ADDR to one that is",
        {host});
  }
  co_return std::move(listeners);
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

/// listen_for_ranks at the first free port of those at which `address` may be.
inline async::Task<std::vector<net::Listener>> listen_on_any(async::EventLoop& loop, StoreAddress address,
                                                             Deadline deadline, ListenOptions options) {
  for (std::uint16_t offset = 0;; ++offset) {
    const auto port = static_cast<std::uint16_t>(address.port + offset);
    try {
      std::vector<net::Listener> listeners = co_await listen_for_ranks(loop, address.host, port, deadline, options);
      co_return std::move(listeners);
    } catch (const Error& error) {
      if (error.code().value() != EADDRINUSE || offset + 1 >= address.ports) {
        throw;
      }
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
