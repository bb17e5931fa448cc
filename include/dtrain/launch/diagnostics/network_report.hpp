#pragma once
/// @file
/// Network report: interface and warnings that rank 0 prints at start, and whoami --verbose on request.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/launch/diagnostics/local_interface.hpp"
#include "dtrain/launch/diagnostics/network_warnings.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/socket_address.hpp"

namespace DTRAIN_NAMESPACE::launch {

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
  const std::optional<LocalInterface> own = local_interface(variables, master, files, addresses, address_towards);
  if (own) {
    const std::string speed = own->is_loopback ? "within this host" : speed_text(interface_speed(own->name, files));
    report.interface = format_text("network: {} ({}), {}", {own->name, own->address, speed});
  } else {
    report.interface = "network: no interface leads to other hosts";
  }
  if (own && several_hosts && !variables.has("DTRAIN_HOST_ID")) {  // which lets one host be several nodes, for a test
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
