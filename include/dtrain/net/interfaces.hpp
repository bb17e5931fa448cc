#pragma once
/// @file
/// Addresses of this machine's network interfaces, and whether other hosts reach them.

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/socket_address.hpp"

namespace DTRAIN_NAMESPACE::net {

/// An address of this machine.
struct InterfaceAddress {
  std::string interface;  ///< "eth0"
  SocketAddress address;  ///< port 0
  bool is_up = true;
};

/// "eth0 (192.0.2.1)".
inline std::string to_string(const InterfaceAddress& own) {
  return format_text("{} ({})", {own.interface, own.address.host()});
}

/// All IPv4 and IPv6 addresses of the interfaces, in the system's order. @throws Error (posix)
inline std::vector<InterfaceAddress> interface_addresses() {
  ::ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw_errno("asking for the addresses of this machine's network interfaces");
  }
  const std::unique_ptr<::ifaddrs, void (*)(::ifaddrs*)> owner(list, &::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ::ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const bool is_v6 = each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET6;
    const auto size = static_cast<socklen_t>(is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    if (each->ifa_addr == nullptr) {
      continue;
    }
    if (const auto address = SocketAddress::from_system(each->ifa_addr, size)) {
      all.push_back({each->ifa_name, address->with_port(0), (each->ifa_flags & IFF_UP) != 0});
    }
  }
  return all;
}

/// Whether the interface is a bridge for the containers of one machine. Other hosts cannot reach its address.
inline bool is_container_bridge(std::string_view name) {
  const bool docker_network =  // br-0123456789ab
      name.size() == 15 && name.starts_with("br-") &&
      name.find_first_not_of("0123456789abcdef", 3) == std::string_view::npos;
  return docker_network || name.starts_with("docker") || name.starts_with("podman") || name.starts_with("cni") ||
         name.starts_with("lxcbr") || name.starts_with("lxdbr") || name.starts_with("virbr");
}

/// Whether an interface of this machine has the address. False on a system that does not list its interfaces.
inline bool is_own(const SocketAddress& address) {
  try {
    const std::vector<InterfaceAddress> all = interface_addresses();
    return std::any_of(all.begin(), all.end(),
                       [&](const InterfaceAddress& each) { return each.address == address.with_port(0); });
  } catch (const Error&) {
    return false;
  }
}

/// Whether the address belongs to an interface that is down, where a listener gets no connections.
inline bool is_down(const SocketAddress& address) {
  try {
    const std::vector<InterfaceAddress> all = interface_addresses();
    return std::any_of(all.begin(), all.end(), [&](const InterfaceAddress& each) {
      return each.address == address.with_port(0) && !each.is_up;
    });
  } catch (const Error&) {
    return false;  // a system that does not list its interfaces
  }
}

/// Whether no route leads to the address, as to 127.0.0.1 before the loopback interface has ever been up.
inline bool is_unreachable(const SocketAddress& address) noexcept {
  const Descriptor socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress target = address.with_port(9);  // any port: connecting a datagram socket sends nothing
  return socket && ::connect(socket.get(), target.data(), target.size()) != 0 && errno == ENETUNREACH;
}

/// This machine's address on the route to another machine, or to itself; empty without a route. Sends nothing.
inline std::optional<SocketAddress> address_towards(const SocketAddress& target) {
  const Descriptor socket(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress port_given = target.with_port(9);  // any port: connect() needs one
  if (!socket || ::connect(socket.get(), port_given.data(), port_given.size()) != 0) {
    return std::nullopt;
  }
  const std::optional<SocketAddress> own = SocketAddress::of_socket(socket.get(), &::getsockname);
  return own ? std::optional(own->with_port(0)) : std::nullopt;
}

/// This machine's address on the default route, IPv4 before IPv6: the one to publish if no setting names another. Empty
/// without such a route. Sends nothing.
inline std::optional<SocketAddress> address_of_default_route() {
  for (const char* const outside : {"192.0.2.1", "2001:db8::1"}) {  // reserved for documentation (RFC 5737, RFC 3849)
    const std::optional<SocketAddress> own = address_towards(*SocketAddress::from_numeric(outside, 0));
    if (own && !own->is_loopback() && !own->is_any()) {
      return own;
    }
  }
  return std::nullopt;
}

/// The default route's address; else that of the first interface that is not loopback; nullopt without one, or on a
/// system that does not list its interfaces.
inline std::optional<SocketAddress> outward_address() {
  if (const std::optional<SocketAddress> own = address_of_default_route()) {
    return own;
  }
  try {
    for (const InterfaceAddress& each : interface_addresses()) {
      if (!each.address.is_loopback()) return each.address;
    }
  } catch (const Error&) {  // such a system
  }
  return std::nullopt;
}

/// The numeric address of this machine that `name` gives as an interface (IPv4 before IPv6) or as an address. Empty if
/// neither is of this machine: one setting for all machines of a job may name another one. @throws Error (posix)
inline std::string local_address_named(const std::string& name) {
  const std::optional<SocketAddress> address = SocketAddress::from_numeric(name, 0);
  std::string found;
  for (const InterfaceAddress& each : interface_addresses()) {
    const bool meant = address ? each.address == *address : each.interface == name;
    if (meant && !each.address.is_v6()) {
      return each.address.host();
    }
    if (meant && found.empty()) {
      found = each.address.host();
    }
  }
  return found;
}

}  // namespace DTRAIN_NAMESPACE::net
