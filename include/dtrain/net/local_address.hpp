#pragma once
/// @file
/// local_address_named(): the address of this machine that a setting names.

#include <optional>
#include <string>

#include "dtrain/net/interfaces.hpp"

namespace DTRAIN_NAMESPACE::net {

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
