#pragma once
/// @file
/// Which of this machine's addresses a setting means.

#include <optional>
#include <string>

#include "dtrain/net/interfaces.hpp"

namespace DTRAIN_NAMESPACE::net {

/// The numeric address of this machine that `name` means: an interface's, IPv4 before IPv6, or itself. Empty where it
/// means none: it may be said to all machines of a job, and speak of another one. @throws Error (posix)
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
