#pragma once
/// @file
/// Local network interface by which other hosts of a job reach this one, with its speed; found without network traffic.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/socket_address.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

/// /sys/class/net/NAME; for an alias ("eth0:1"), the folder of its interface.
inline std::string folder_of_interface(std::string_view name) {
  return "/sys/class/net/" + std::string(name.substr(0, name.find(':')));
}

/// Whether the interface has no device, and is not on top of one as a bond or a VLAN is.
inline bool is_virtual(const std::vector<std::string>& files) {
  return std::none_of(files.begin(), files.end(),
                      [](const std::string& file) { return file == "device" || file.compare(0, 6, "lower_") == 0; });
}

}  // namespace detail

/// Speed in Mbit/s. nullopt if the kernel does not know it, or if the interface has no device: the 10000 that veth
/// reports is no measured value.
inline std::optional<int> interface_speed(std::string_view name, const SystemFiles& files) {
  const std::string folder = detail::folder_of_interface(name);
  const std::optional<int> speed = identity::parse_integer(files.line(folder + "/speed").value_or(""));
  return speed && *speed > 0 && !detail::is_virtual(files.names(folder)) ? speed : std::nullopt;
}

/// "25 Gbit/s", "2.5 Gbit/s", "100 Mbit/s", "speed unknown".
inline std::string speed_text(std::optional<int> mbit) {
  if (!mbit) {
    return "speed unknown";
  }
  if (*mbit < 1000) {
    return std::to_string(*mbit) + " Mbit/s";
  }
  std::string text = std::to_string(*mbit / 1000);
  if (const int tenths = *mbit % 1000 / 100; tenths != 0) {
    append_text(text, ".{}", {tenths});
  }
  return text + " Gbit/s";
}

/// An interface and the address by which other hosts reach it.
struct LocalInterface {
  std::string name;     ///< "eth0"
  std::string address;  ///< "192.0.2.1"
  bool is_loopback = false;
};

namespace detail {

/// The address of a name in a text with the format of /etc/hosts.
inline std::optional<net::SocketAddress> address_in_hosts(std::string_view hosts, std::string_view name) {
  while (!hosts.empty()) {
    const std::size_t end = std::min(hosts.find('\n'), hosts.size());
    std::string_view line = hosts.substr(0, end);
    hosts.remove_prefix(std::min(end + 1, hosts.size()));
    line = line.substr(0, line.find('#'));
    std::optional<net::SocketAddress> address;
    while (!line.empty()) {
      const std::size_t begin = std::min(line.find_first_not_of(" \t\r"), line.size());
      line.remove_prefix(begin);
      const std::string_view word = line.substr(0, line.find_first_of(" \t\r"));
      line.remove_prefix(word.size());
      if (!address) {
        address = net::SocketAddress::from_numeric(word, 0);
        if (!address) {
          break;
        }
      } else if (word == name) {
        return address;
      }
    }
  }
  return std::nullopt;
}

}  // namespace detail

/// The numeric address of the job's store, from the text itself or from /etc/hosts; else nullopt. Also nullopt for
/// every address (0.0.0.0), and for a host name that is a loopback address here (Debian's 127.0.1.1), because it is
/// another address on other hosts.
inline std::optional<net::SocketAddress> known_address(const std::string& host, const SystemFiles& files) {
  if (const auto numeric = net::SocketAddress::from_numeric(host, 0)) {
    return numeric->unmapped().is_any() ? std::nullopt : numeric;
  }
  const auto listed = detail::address_in_hosts(files.text("/etc/hosts").value_or(""), host);
  return listed && (!listed->is_loopback() || net::is_loopback_host(host)) ? listed : std::nullopt;
}

/// The interface that DTRAIN_INTERFACE names. Else the interface that has the store's address, or the route to it. Else
/// the interface of the default route. nullopt if the result is none of `addresses`.
/// @param master MASTER_ADDR, or the address that replaces it
/// @param address_towards returns this host's address on the route to another address: net::address_towards, or a
/// function of a test
template <class AddressTowards>
std::optional<LocalInterface> local_interface(const identity::Variables& variables,
                                              const std::optional<std::string>& master, const SystemFiles& files,
                                              const std::vector<net::InterfaceAddress>& addresses,
                                              AddressTowards address_towards) {
  const auto found = [&](const auto& is_wanted) -> std::optional<LocalInterface> {
    for (const net::InterfaceAddress& each : addresses) {
      if (is_wanted(each)) {
        return LocalInterface{each.interface, each.address.host(), each.address.is_loopback()};
      }
    }
    return std::nullopt;
  };
  if (const auto named = variables.text("DTRAIN_INTERFACE")) {
    const auto numeric = net::SocketAddress::from_numeric(*named, 0);
    return found([&](const auto& each) { return numeric ? each.address == *numeric : each.interface == *named; });
  }
  const std::optional<net::SocketAddress> target = master ? known_address(*master, files) : std::nullopt;
  const std::optional<net::SocketAddress> own = address_towards(target);
  return own ? found([&](const auto& each) { return each.address == *own; }) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::launch
