#pragma once
/// @file
/// The local IP address at which a Gloo channel listens.

#include <optional>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::backend::gloo {

namespace detail {

/// The default route's address; else that of the first interface that is not loopback; nullopt without one.
inline std::optional<net::SocketAddress> outward_address() {
  std::optional<net::SocketAddress> found = net::address_of_default_route();
  for (const net::InterfaceAddress& each : net::interface_addresses()) {
    if (!found && !each.address.is_loopback()) {
      found = each.address;
    }
  }
  return found;
}

}  // namespace detail

/// Numeric; the first that applies:
/// - the address of DTRAIN_INTERFACE;
/// - 127.0.0.1 if all ranks share this host;
/// - the address at which the store sees this rank;
/// - detail::outward_address(), on the store's own host, where the store may see this rank by loopback.
/// @throws Error (unsupported) if this host has no address that others can reach
inline std::string device_address(const rendezvous::Membership& members) {
  if (!members.named_address.empty()) {
    return members.named_address;
  }
  if (members.other_host_rank < 0) {
    return "127.0.0.1";
  }
  if (!members.route_address.empty()) {
    return members.route_address;
  }
  const std::optional<net::SocketAddress> outward = detail::outward_address();
  if (!outward) {
    throw_error(Errc::unsupported,
                "backend::Gloo finds no address of host {} that rank {} on host {} could reach; name an interface with "
                "DTRAIN_INTERFACE",
                {members.host, members.other_host_rank, members.other_host});
  }
  return outward->host();
}

}  // namespace DTRAIN_NAMESPACE::backend::gloo
