#pragma once
/// @file
/// Where a store listens for the others of its job.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/net/resolve.hpp"
#include "dtrain/rendezvous/knock.hpp"
#include "dtrain/rendezvous/slow_notice.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// What the user said about it.
struct ListenRules {
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: an interface's name, or an address
  bool has_secret = false;                  ///< then who reaches the port cannot join without it
};

namespace detail {

/// Nothing where the address is not one of this machine's. @throws Error (posix) with a sentence about the port
inline std::optional<net::Listener> try_listen(async::EventLoop& loop, const std::string& host,
                                               const net::Endpoint& endpoint) {
  try {
    return net::Listener::bind(loop, endpoint);
  } catch (const Error& error) {
    if (error.code().value() == EADDRNOTAVAIL) {
      return std::nullopt;
    }
    if (error.code().value() == EADDRINUSE) {
      throw Error(error.code(), "port " + std::to_string(endpoint.port()) + " on " + host +
                                    " is in use by another program, or by another rank 0, and the job's store is to "
                                    "listen there; choose another with MASTER_PORT or --master-port");
    }
    throw;
  }
}

/// The addresses of what DTRAIN_INTERFACE names. @throws Error (usage) where this machine has no such
inline std::vector<net::Endpoint> named_addresses(const std::string& name, std::uint16_t port) {
  if (const std::optional<net::Endpoint> address = net::Endpoint::from_numeric(name, port)) {
    return {*address};
  }
  std::vector<net::Endpoint> found;
  std::string there;
  for (const net::InterfaceAddress& each : net::interface_addresses()) {
    if (each.interface == name) {
      found.push_back(each.endpoint.with_port(port));
    }
    there += (there.empty() ? "" : ", ") + each.interface + " (" + each.endpoint.host() + ")";
  }
  if (found.empty()) {
    throw Error(Errc::usage, "DTRAIN_INTERFACE=" + name +
                                 " is neither an address nor an interface of this machine with "
                                 "one; there are: " +
                                 there);
  }
  return found;
}

/// Every interface is for those with a secret. @param who names it: "DTRAIN_INTERFACE=0.0.0.0" @throws Error (usage)
inline void require_secret_for_any(const net::Endpoint& endpoint, const std::string& who, bool has_secret) {
  if (!has_secret && endpoint.unmapped().is_any()) {
    throw Error(Errc::usage, who + " means every interface of this machine, and to listen at all of them the job's " +
                                 "store needs a secret; name one address or interface, or set the same DTRAIN_SECRET " +
                                 "for all of the job");
  }
}

/// Where to listen for a host that is none of this machine's outward addresses: its name may mean the loopback address
/// here and another one elsewhere (Debian's 127.0.1.1), or the address may be forwarded to this machine (a service's).
/// @throws Error (usage) where that would be every interface, for everybody
inline std::vector<net::Endpoint> behind_a_name(const std::string& host, const std::vector<net::Endpoint>& resolved,
                                                const std::optional<net::Endpoint>& outward) {
  std::vector<net::Endpoint> candidates;
  if (outward) {
    candidates.push_back(outward->with_port(resolved.front().port()));
  }
  std::copy_if(resolved.begin(), resolved.end(), std::back_inserter(candidates),
               [](const net::Endpoint& each) { return each.is_loopback(); });
  if (candidates.empty()) {
    throw Error(Errc::usage,
                "the job's store is to listen at " + host +
                    ", which is no address of this machine, and to listen at all of its addresses the job "
                    "needs a secret; set MASTER_ADDR to an address of this machine, or DTRAIN_INTERFACE, or "
                    "the same DTRAIN_SECRET for all of the job");
  }
  return candidates;
}

}  // namespace detail

/// Listens at `host` where that is this machine's: at the loopback address if it is written as one; else at the first
/// of its addresses that is local and not loopback. Where none is: at every address with a secret; without one at the
/// address of the default route, and at the loopback address that the name means here. 0.0.0.0 and :: are every
/// address.
/// @throws Error (posix): "port 29500 on host-a is in use ..."; Error (refused) for a host that does not resolve by the
/// deadline; Error (usage) where it would have to listen everywhere without a secret, or DTRAIN_INTERFACE is none of
/// this machine's
inline async::Task<std::vector<net::Listener>> listen_for_ranks(async::EventLoop& loop, std::string host,
                                                                std::uint16_t port, Deadline deadline,
                                                                ListenRules rules) {
  std::vector<net::Listener> listeners;
  const std::string who = rules.interface ? "DTRAIN_INTERFACE=" + *rules.interface : "the master address " + host;
  const auto listen = [&](const net::Endpoint& endpoint) {
    detail::require_secret_for_any(endpoint, who, rules.has_secret);
    std::optional<net::Listener> listener = detail::try_listen(loop, host, endpoint);
    if (listener) {
      listeners.push_back(*std::move(listener));
    }
    return !listeners.empty();
  };
  if (rules.interface) {
    const std::vector<net::Endpoint> named = detail::named_addresses(*rules.interface, port);
    if (!std::any_of(named.begin(), named.end(), listen)) {
      throw Error(Errc::usage, who + " is no address of this machine");
    }
    co_return std::move(listeners);
  }
  SlowNotice notice(loop, "opening the job's store at " + host + ":" + std::to_string(port),
                    "the name service has not answered");
  net::Backoff backoff;
  backoff.on_failure = [&notice](const std::string& why) { notice.note(why); };
  async::Task<std::vector<net::Endpoint>> lookup = net::resolve_with_backoff(loop, host, port, deadline, backoff);
  const std::vector<net::Endpoint> resolved = co_await std::move(lookup);
  const bool loopback = net::is_written_as_loopback(host);
  const bool found = std::any_of(resolved.begin(), resolved.end(), [&](const net::Endpoint& endpoint) {
    return (loopback || !endpoint.is_loopback()) && listen(endpoint);
  });
  if (!found && rules.has_secret) {
    listeners.push_back(net::Listener::bind_any(loop, port));
  } else if (!found) {
    const std::vector<net::Endpoint> candidates =
        detail::behind_a_name(host, resolved, net::address_of_default_route());
    std::for_each(candidates.begin(), candidates.end(), listen);
  }
  if (listeners.empty()) {
    throw Error(Errc::usage, "the job's store is to listen at " + host +
                                 ", which is no address of this machine; set "
                                 "MASTER_ADDR to one that is");
  }
  co_return std::move(listeners);
}

/// listen_for_ranks at the first port that is free of those where `address` may be.
inline async::Task<std::vector<net::Listener>> listen_at_one_of(async::EventLoop& loop, Address address,
                                                                Deadline deadline, ListenRules rules) {
  for (std::uint16_t place = 0;; ++place) {
    const auto port = static_cast<std::uint16_t>(address.port + place);
    try {
      std::vector<net::Listener> listeners = co_await listen_for_ranks(loop, address.host, port, deadline, rules);
      co_return std::move(listeners);
    } catch (const Error& error) {
      if (error.code().value() != EADDRINUSE || place + 1 >= address.ports) {
        throw;
      }
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
