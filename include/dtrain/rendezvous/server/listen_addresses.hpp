#pragma once
/// @file
/// Listening addresses of a store, from DTRAIN_INTERFACE, the master address and the machine's interfaces.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/socket_address.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct ListenOptions {
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: an interface's name, or an address
  bool has_secret = false;                  ///< of the job: reaching the port is then not enough to join
  bool several_hosts = false;               ///< ranks of other hosts may come
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

/// Whether other hosts may come by this address of this machine.
inline bool leads_outward(const net::InterfaceAddress& own) {
  return own.is_up && !own.address.is_loopback() && !own.address.is_link_local() &&
         !net::is_container_bridge(own.interface);
}

/// The addresses by which other hosts most probably come: that of the default route, or without one those of the only
/// interface that leads outward. Empty if there are several such interfaces, or none.
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
inline std::vector<net::SocketAddress> outward_addresses() {
  return outward_addresses(net::address_of_default_route(), own_addresses());
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

/// The interfaces by which other hosts may come and at which a store does not listen: "eth1 (10.77.0.1), ib0 (...)".
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
      append_text(text, "{}{} ({})", {text.empty() ? "" : ", ", each.interface, each.address.host()});
      last = each.interface;
    }
  }
  return text;
}

/// @param where "this host"
inline std::string unused_remedy(const std::string& unused, const char* where) {
  return format_text(
      "It does not listen at {}: if other hosts come by that, set DTRAIN_INTERFACE to it on {}, or the same "
      "DTRAIN_SECRET for all of the job, with which it listens at every address",
      {unused, where});
}

/// "10.0.0.2:29500 and [fd00::2]:29500", "port 29500 of every address"
inline std::string places_text(const std::vector<net::SocketAddress>& listening) {
  std::string places;
  for (const net::SocketAddress& each : listening) {
    places += (places.empty() ? "" : " and ") +
              (each.is_any() ? format_text("port {} of every address", {each.port()}) : to_string(each));
  }
  return places;
}

/// Where a store listens, beside the address that the ranks were given. The two differ where that address is forwarded
/// to this host, or means another address here than elsewhere, or is wrong.
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
  const bool is_here = net::is_loopback_host(master_host);  // no other host can come
  const std::string unused = is_here ? "" : unused_interfaces(listening, own);
  return format_text("{} listens at {}, and MASTER_ADDR is {}{}{}{}",
                     {who, places_text(listening), master_host, what, unused.empty() ? "" : ". ",
                      unused.empty() ? "" : unused_remedy(unused, "its host")});
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::rendezvous
