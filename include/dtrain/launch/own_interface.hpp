#pragma once
/// @file
/// The network interface by which the other hosts of a job reach this one, as far as can be told without asking
/// anybody.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/machine_files.hpp"
#include "dtrain/net/interfaces.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// An interface with the address that the others reach it by.
struct OwnInterface {
  std::string name;     ///< "eth0"
  std::string address;  ///< "192.0.2.1"
  bool is_loopback = false;
};

namespace detail {

/// What a file in the form of /etc/hosts says of a name.
inline std::optional<net::Endpoint> address_in_hosts(std::string_view hosts, std::string_view name) {
  while (!hosts.empty()) {
    const std::size_t end = std::min(hosts.find('\n'), hosts.size());
    std::string_view line = hosts.substr(0, end);
    hosts.remove_prefix(std::min(end + 1, hosts.size()));
    line = line.substr(0, line.find('#'));
    std::optional<net::Endpoint> address;
    while (!line.empty()) {
      const std::size_t begin = std::min(line.find_first_not_of(" \t\r"), line.size());
      line.remove_prefix(begin);
      const std::string_view word = line.substr(0, line.find_first_of(" \t\r"));
      line.remove_prefix(word.size());
      if (!address) {
        address = net::Endpoint::from_numeric(word, 0);
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

/// The numeric address of the job's meeting point, where it is written as one or /etc/hosts has it. A name that means
/// the loopback address here (Debian's 127.0.1.1) means another one elsewhere: nothing.
inline std::optional<net::Endpoint> known_address(const std::string& host, const MachineFiles& files) {
  if (const auto numeric = net::Endpoint::from_numeric(host, 0)) {
    return numeric;
  }
  const auto listed = detail::address_in_hosts(files.text("/etc/hosts").value_or(""), host);
  return listed && (!listed->is_loopback() || net::is_written_as_loopback(host)) ? listed : std::nullopt;
}

/// The interface that DTRAIN_INTERFACE names; else the one that has, or leads to, the job's meeting point; else the one
/// of the default route. Nothing where that is none of `addresses`.
/// @param master MASTER_ADDR, or what stands for it
/// @param address_towards which own address the route to another one has: net::address_towards, or a test's
template <class AddressTowards>
std::optional<OwnInterface> own_interface(const identity::Variables& variables,
                                          const std::optional<std::string>& master, const MachineFiles& files,
                                          const std::vector<net::InterfaceAddress>& addresses,
                                          AddressTowards address_towards) {
  const auto found = [&](const auto& is_wanted) -> std::optional<OwnInterface> {
    for (const net::InterfaceAddress& each : addresses) {
      if (is_wanted(each)) {
        return OwnInterface{each.interface, each.endpoint.host(), each.endpoint.is_loopback()};
      }
    }
    return std::nullopt;
  };
  if (const auto named = variables.text("DTRAIN_INTERFACE")) {
    const auto numeric = net::Endpoint::from_numeric(*named, 0);
    return found([&](const auto& each) { return numeric ? each.endpoint == *numeric : each.interface == *named; });
  }
  const std::optional<net::Endpoint> target = master ? known_address(*master, files) : std::nullopt;
  const std::optional<net::Endpoint> own = address_towards(target);
  return own ? found([&](const auto& each) { return each.endpoint == *own; }) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::launch
