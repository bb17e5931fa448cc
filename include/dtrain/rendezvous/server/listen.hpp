#pragma once
/// @file
/// Listeners of a job's store: its addresses (DTRAIN_INTERFACE, master address, the machine's interfaces), and
/// conflicts over a port.

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

#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/net/resolve_host.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/client/slow_notice.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct ListenOptions {
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: an interface's name, or an address
  bool has_secret = false;                  ///< whether the job has a secret: without one, reaching the port is enough
  bool several_hosts = false;               ///< ranks of other hosts may connect
};

namespace detail {

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
    append_entry(there, ", ", to_string(each));
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

/// This machine's addresses; none on a system that does not list them.
inline std::vector<net::InterfaceAddress> own_addresses() {
  try {
    return net::interface_addresses();
  } catch (const Error&) {
    return {};
  }
}

/// Whether this is an address of a bridge for this machine's containers.
inline bool is_of_bridge(const net::SocketAddress& address, const std::vector<net::InterfaceAddress>& own) {
  return std::any_of(own.begin(), own.end(), [&](const net::InterfaceAddress& each) {
    return each.address == address.with_port(0) && net::is_container_bridge(each.interface);
  });
}

/// Whether other hosts may connect to this address of this machine.
inline bool leads_outward(const net::InterfaceAddress& own) {
  return own.is_up && !own.address.is_loopback() && !own.address.is_link_local() &&
         !net::is_container_bridge(own.interface);
}

/// The addresses to which other hosts most probably connect: that of the default route, or without one those of the
/// only interface that leads outward. Empty if there are several such interfaces, or none.
inline std::vector<net::SocketAddress> outward_addresses(const std::optional<net::SocketAddress>& default_route,
                                                         const std::vector<net::InterfaceAddress>& own) {
  std::vector<net::SocketAddress> found;
  std::string interface;
  if (default_route) {
    return {*default_route};
  }
  for (const net::InterfaceAddress& each : own) {
    if (!leads_outward(each)) {
      continue;
    }
    if (!interface.empty() && each.interface != interface) {
      return {};
    }
    interface = each.interface;
    found.push_back(each.address);
  }
  return found;
}
/// Listening addresses, without a secret, for a host that is none of this machine's outward addresses. Its name may
/// mean a loopback address here and another one elsewhere (Debian's 127.0.1.1), or it is forwarded here (a service).
/// @param outward outward_addresses()
/// @throws Error (usage) if there is no candidate: the store would have to listen everywhere, for every process
inline std::vector<net::SocketAddress> resolve_candidates(const std::string& host,
                                                          const std::vector<net::SocketAddress>& resolved,
                                                          const std::vector<net::SocketAddress>& outward) {
  std::vector<net::SocketAddress> candidates;
  for (const net::SocketAddress& each : outward) {
    candidates.push_back(each.with_port(resolved.front().port()));
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

/// Whether `host` is a name that means a loopback address on this machine, of a store that listens at `listening`.
inline bool means_loopback(const std::string& host, const std::vector<net::SocketAddress>& listening) {
  return !net::is_loopback_host(host) &&
         std::any_of(listening.begin(), listening.end(), [](const auto& each) { return each.is_loopback(); });
}

/// The interfaces to which other hosts may connect and at which a store does not listen: "eth1 (10.77.0.1), ib0 (...)".
inline std::string unused_interfaces(const std::vector<net::SocketAddress>& listening,
                                     const std::vector<net::InterfaceAddress>& own) {
  const auto listens_there = [&](const std::string& interface) {
    return std::any_of(own.begin(), own.end(), [&](const net::InterfaceAddress& each) {
      return each.interface == interface &&
             std::any_of(listening.begin(), listening.end(), [&](const net::SocketAddress& at) {
               return at.unmapped().is_any() || at.unmapped().with_port(0) == each.address;
             });
    });
  };
  std::string text;
  std::string last;
  for (const net::InterfaceAddress& each : own) {
    if (each.interface != last && leads_outward(each) && !listens_there(each.interface)) {
      append_entry(text, ", ", to_string(each));
      last = each.interface;
    }
  }
  return text;
}

/// @param where "this host"
inline std::string unused_remedy(const std::string& unused, const char* where) {
  return format_text(
      "It does not listen at {}: if other hosts connect by that, set DTRAIN_INTERFACE to it on {}, or the same "
      "DTRAIN_SECRET for all of the job, with which it listens at every address",
      {unused, where});
}

/// "10.0.0.2:29500 and [fd00::2]:29500", "port 29500 of every address"
inline std::string places_text(const std::vector<net::SocketAddress>& listening) {
  std::string places;
  for (const net::SocketAddress& each : listening) {
    append_entry(places, " and ",
                 each.is_any() ? format_text("port {} of every address", {each.port()}) : to_string(each));
  }
  return places;
}

/// Where a store listens, apart from the address that the ranks were given. The two differ where that address is
/// forwarded to this host, or means another address here than elsewhere, or is wrong.
/// @param who "rank 0"
/// @param own this machine's addresses
inline std::string listens_at(const std::string& who, const std::vector<net::SocketAddress>& listening,
                              const std::string& master_host, const std::vector<net::InterfaceAddress>& own) {
  const std::optional<net::SocketAddress> given = net::SocketAddress::from_numeric(master_host, 0);
  const bool is_elsewhere = given && !given->is_loopback() && !given->is_any() &&
                            std::none_of(own.begin(), own.end(), [&](const net::InterfaceAddress& each) {
                              return each.address.host() == given->unmapped().host();
                            });
  const char* what = is_elsewhere                             ? ", which is no address of its host"
                     : means_loopback(master_host, listening) ? ", which means a loopback address on its host"
                                                              : "";
  const bool is_here = net::is_loopback_host(master_host);  // no other host can connect
  const std::string unused = is_here ? "" : unused_interfaces(listening, own);
  return format_text("{} listens at {}, and MASTER_ADDR is {}{}{}{}",
                     {who, places_text(listening), master_host, what, unused.empty() ? "" : ". ",
                      unused.empty() ? "" : unused_remedy(unused, "its host")});
}

/// A listener; nullopt if the address is not this machine's, is of a kind that its kernel lacks (IPv6), or is one of
/// the name `host` that no socket can have: an IPv6 link-local address without an interface.
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
    for (const net::SocketAddress& each :
         resolve_candidates(host, resolved, outward_addresses(net::address_of_default_route(), own))) {
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
    backoff.on_retry = [&notice](std::string why) { notice.note(std::move(why)); };
    async::Task<std::vector<net::SocketAddress>> lookup =
        net::resolve_with_backoff(loop, host, port, deadline, backoff);
    resolved = co_await std::move(lookup);
  }
  std::vector<net::Listener> listeners;
  for (const int last = port + ports - 1; listeners.empty(); ++port) {
    try {
      listeners = detail::open_listeners(loop, host, port, resolved, options);
    } catch (const Error& error) {
      if (error.code().value() != EADDRINUSE || port >= last) throw;
    }
  }
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
  HandshakeResult result;
  try {
    async::Task<net::Connection> connecting = net::connect_with_backoff(loop, address.host, address.port, soon);
    net::Connection connection = co_await std::move(connecting);
    Session session(std::move(connection));
    async::Task<HandshakeResult> asking = handshake(session, address, encode(join), "asking", soon, soon);
    result = co_await std::move(asking);
  } catch (const Error&) {  // another program, or a store with another secret
  }
  const std::string answer = detail::answer_of_holder(result);
  if (answer.empty()) {
    throw *taken;
  }
  throw Error(taken->code(), taken->what() + ("; the store of dtrain's there says: " + answer));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
