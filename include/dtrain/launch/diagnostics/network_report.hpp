#pragma once
/// @file
/// Network report of a launcher or rank 0: the interface by which other hosts reach this one, and reasons for a slow
/// network; sends nothing.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/variables.hpp"
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

/// The address of a name in a text with the format of /etc/hosts.
inline std::optional<net::SocketAddress> address_in_hosts(std::string_view hosts, std::string_view name) {
  while (!hosts.empty()) {
    std::string_view line = next_entry(hosts, '\n');
    line = line.substr(0, line.find('#'));
    const std::optional<net::SocketAddress> address = net::SocketAddress::from_numeric(next_word(line), 0);
    while (address && !line.empty()) {
      if (next_word(line) == name) return address;
    }
  }
  return std::nullopt;
}

/// Whether a list of transports disables those whose names begin with one of `transports`.
/// Example for {"rc"}: "sm" and "^rc" (all but rc) disable it, "rc,sm" and "^tcp" do not.
inline bool leaves_out(std::string_view list, std::initializer_list<const char*> transports) {
  const bool all_others = !list.empty() && list.front() == '^';
  list.remove_prefix(all_others ? 1 : 0);
  bool listed = false;
  while (!list.empty()) {
    std::string_view word = list.substr(0, list.find_first_of(",;"));
    list.remove_prefix(word.size() + (word.size() < list.size() ? 1 : 0));
    word.remove_prefix(!word.empty() && word.front() == '\\' ? 1 : 0);  // UCX: rc without auxiliary transports
    for (const std::string_view transport : transports) {
      listed = listed || word.substr(0, transport.size()) == transport;
    }
  }
  return listed == all_others;
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
/// the interface of the default route, with the address at which other hosts reach it. nullopt if the result is none of
/// `addresses`.
/// @param master MASTER_ADDR, or the address that replaces it
/// @param address_towards returns this host's address on the route to another address: net::address_towards, or a
/// function of a test
template <class AddressTowards>
std::optional<net::InterfaceAddress> local_interface(const identity::Variables& variables,
                                                     const std::optional<std::string>& master, const SystemFiles& files,
                                                     const std::vector<net::InterfaceAddress>& addresses,
                                                     AddressTowards address_towards) {
  const auto found = [&](const auto& is_wanted) {
    for (const net::InterfaceAddress& each : addresses) {
      if (is_wanted(each)) return std::optional(each);
    }
    return std::optional<net::InterfaceAddress>();
  };
  if (const auto named = variables.text("DTRAIN_INTERFACE")) {
    const auto numeric = net::SocketAddress::from_numeric(*named, 0);
    return found([&](const auto& each) { return numeric ? each.address == *numeric : each.interface == *named; });
  }
  const std::optional<net::SocketAddress> target = master ? known_address(*master, files) : std::nullopt;
  const std::optional<net::SocketAddress> own = address_towards(target);
  return own ? found([&](const auto& each) { return each.address == *own; }) : std::nullopt;
}

/// Active ports ("mlx5_0 port 1 (200 Gb/sec (4X HDR))"), without ports of Ethernet adapters (RoCE).
inline std::vector<std::string> active_infiniband_ports(const SystemFiles& files) {
  constexpr const char* all = "/sys/class/infiniband";
  std::vector<std::string> active;
  for (const std::string& adapter : files.names(all)) {
    const std::string ports = format_text("{}/{}/ports", {all, adapter});
    for (const std::string& port : files.names(ports)) {
      const auto line = [&](const char* file) {
        return files.line(format_text("{}/{}/{}", {ports, port, file})).value_or("");
      };
      if (line("state").find("ACTIVE") != std::string::npos && line("link_layer") == "InfiniBand") {
        const std::string rate = line("rate");
        const std::string_view shown = std::string_view(rate).substr(0, 64);
        active.push_back(sanitize(shown.empty() ? format_text("{} port {}", {adapter, port})
                                                : format_text("{} port {} ({})", {adapter, port, shown})));
      }
    }
  }
  return active;
}

/// Environment variables that disable InfiniBand for NCCL, UCX or libfabric, each as "NAME='value'".
/// Sources: NCCL's, UCX's and libfabric's documentation of these variables.
inline std::vector<std::string> variables_against_infiniband(const identity::Variables& variables) {
  std::vector<std::string> found;
  const auto check = [&](const char* name, bool (*disables)(std::string_view)) {
    const std::optional<std::string_view> value = variables.text(name);
    if (value && disables(*value)) {
      found.push_back(identity::quoted(name, *value));
    }
  };
  check("NCCL_IB_DISABLE", [](std::string_view value) { return value != "0"; });
  check("UCX_TLS", [](std::string_view value) { return detail::leaves_out(value, {"all", "ib", "rc", "ud", "dc"}); });
  check("FI_PROVIDER", [](std::string_view value) {
    return detail::leaves_out(value, {"verbs", "psm", "mlx", "opx"});
  });
  return found;
}

/// For ranks on several hosts: `own` is the loopback interface or a container bridge, which reach no other host.
/// @param others this machine's addresses; the sentence proposes some of them
inline std::optional<std::string> interface_without_others(const net::InterfaceAddress& own,
                                                           const std::vector<net::InterfaceAddress>& others) {
  const bool is_bridge = net::is_container_bridge(own.interface);
  if (!own.address.is_loopback() && !is_bridge) {
    return std::nullopt;
  }
  std::string proposals;
  for (const net::InterfaceAddress& each : others) {
    const bool is_new = proposals.find(each.interface + " (") == std::string::npos;  // its first address is enough
    if (is_new && !each.address.is_loopback() && !net::is_container_bridge(each.interface)) {
      append_entry(proposals, ", ", to_string(each));
    }
  }
  return format_text(
      "{} is {}, by which other hosts cannot reach this one; set MASTER_ADDR to an address of rank 0's host, or "
      "DTRAIN_INTERFACE to an interface of this one{}{}",
      {to_string(own), is_bridge ? "a bridge for this machine's containers" : "the loopback interface",
       proposals.empty() ? "" : "; there are: ", proposals});
}

/// An InfiniBand port is active, but environment variables disable InfiniBand.
inline std::optional<std::string> unused_infiniband(const identity::Variables& variables, const SystemFiles& files) {
  const std::vector<std::string> ports = active_infiniband_ports(files);
  const std::vector<std::string> against = variables_against_infiniband(variables);
  if (ports.empty() || against.empty()) {
    return std::nullopt;
  }
  const std::string more = ports.size() > 1 ? format_text(" and {} more", {ports.size() - 1}) : "";
  return format_text("InfiniBand is up at {}{}, but {} {} the job from it; unset {}",
                     {ports.front(), more, joined(against, " and "), against.size() > 1 ? "keep" : "keeps",
                      against.size() > 1 ? "them" : "it"});
}

/// InfiniBand needs locked memory. With a limit below 1 GiB a job exceeds it, or uses TCP instead.
inline std::optional<std::string> little_lockable_memory(const SystemFiles& files) {
  constexpr std::string_view label = "Max locked memory";
  const std::string limits = files.text("/proc/self/limits").value_or("");
  const std::size_t position = limits.find(label);
  if (position == std::string::npos || active_infiniband_ports(files).empty()) {
    return std::nullopt;
  }
  std::string_view values = std::string_view(limits).substr(position + label.size());
  const std::optional<std::uint64_t> bytes = identity::parse_wide_integer(next_word(values));
  if (!bytes || *bytes >= (std::uint64_t{1} << 30)) {
    return std::nullopt;
  }
  return format_text(
      "RLIMIT_MEMLOCK is {} KiB, and InfiniBand needs memory that it may lock; set it with ulimit -l unlimited, with "
      "memlock in /etc/security/limits.conf, or with docker run --ulimit memlock=-1",
      {*bytes >> 10});
}

/// Azure's images have a file with the topology of GPUs and adapters, which their virtual PCI bus hides from NCCL.
inline std::optional<std::string> unused_topology_file(const identity::Variables& variables, const SystemFiles& files) {
  constexpr const char* top = "/opt/microsoft";
  const auto is_topology = [](const std::string& name) {
    return name.find("topo") != std::string::npos && name.ends_with(".xml");
  };
  if (variables.has("NCCL_TOPO_FILE") ||
      files.text("/etc/nccl.conf").value_or("").find("NCCL_TOPO_FILE") != std::string::npos) {
    return std::nullopt;
  }
  for (const std::string& name : files.names(top)) {
    const std::string path = format_text("{}/{}", {top, name});
    std::string found = is_topology(name) ? path : "";
    if (found.empty()) {
      for (const std::string& inner : files.names(path)) {
        found = is_topology(inner) ? format_text("{}/{}", {path, inner}) : found;
      }
    }
    if (!found.empty()) {
      found = sanitize(found);
      return format_text(
          "{} tells NCCL how this machine is wired, but NCCL_TOPO_FILE is not set; set NCCL_TOPO_FILE={}",
          {found, found});
    }
  }
  return std::nullopt;
}

/// Lines about the network for the launcher or rank 0 to print before the job begins.
struct NetworkReport {
  std::string interface;              ///< "network: eth0 (192.0.2.1), 25 Gbit/s"
  std::vector<std::string> warnings;  ///< sentences with a remedy each
};

/// Whether a job has ranks on several hosts, according to its environment. If the number of nodes is unknown: false for
/// a store at a loopback address, which only one host can reach.
inline bool spans_hosts(const identity::ProcessIdentity& identity) {
  if (identity.node_count) {
    return *identity.node_count > 1;
  }
  return identity.world_size > 1 && identity.master_addr && !net::is_loopback_host(*identity.master_addr);
}

/// Pure, apart from reading `files`.
/// @param several_hosts whether other hosts must reach this host
/// @param addresses of this machine; `address_towards` as in local_interface
template <class AddressTowards>
NetworkReport network_report(const identity::Variables& variables, const std::optional<std::string>& master,
                             bool several_hosts, const SystemFiles& files,
                             const std::vector<net::InterfaceAddress>& addresses, AddressTowards address_towards) {
  NetworkReport report;
  const auto add = [&report](std::optional<std::string> sentence) {
    if (sentence) {
      report.warnings.push_back(*std::move(sentence));
    }
  };
  const std::optional<net::InterfaceAddress> own =
      local_interface(variables, master, files, addresses, address_towards);
  if (own) {
    const std::string speed =
        own->address.is_loopback() ? "within this host" : speed_text(interface_speed(own->interface, files));
    report.interface = format_text("network: {}, {}", {to_string(*own), speed});
  } else {
    report.interface = "network: no interface leads to other hosts";
  }
  if (own && several_hosts && !variables.has("DTRAIN_HOST_ID")) {  // it lets one host be several nodes, for a test
    add(interface_without_others(*own, addresses));
  }
  add(unused_infiniband(variables, files));
  add(little_lockable_memory(files));
  add(unused_topology_file(variables, files));
  return report;
}

/// The report of this machine. An error becomes a line of the report, so that the job starts. Opens no connection and
/// sends no data. Blocking: reads files of the kernel.
inline NetworkReport local_network_report(const identity::Variables& variables,
                                          const std::optional<std::string>& master, bool several_hosts) {
  try {
    return network_report(variables, master, several_hosts, SystemFiles(), net::interface_addresses(),
                          [](const std::optional<net::SocketAddress>& target) {
                            return target ? net::address_towards(*target) : net::address_of_default_route();
                          });
  } catch (const Error& error) {
    return {format_text("network: not known, because {}", {error.what()}), {}};
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
