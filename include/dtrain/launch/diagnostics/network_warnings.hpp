#pragma once
/// @file
/// Network warnings: reasons for a slow network, each a sentence with its remedy.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/launch/diagnostics/local_interface.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Active ports, such as "mlx5_0 port 1 (200 Gb/sec (4X HDR))"; without ports of Ethernet adapters (RoCE).
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

namespace detail {

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
inline std::optional<std::string> interface_without_others(const LocalInterface& own,
                                                           const std::vector<net::InterfaceAddress>& others) {
  const bool is_bridge = net::is_container_bridge(own.name);
  if (!own.is_loopback && !is_bridge) {
    return std::nullopt;
  }
  std::string proposals;
  for (const net::InterfaceAddress& each : others) {
    const bool is_new = proposals.find(each.interface + " (") == std::string::npos;  // its first address is enough
    if (is_new && !each.address.is_loopback() && !net::is_container_bridge(each.interface)) {
      append_text(proposals, "{}{} ({})", {proposals.empty() ? "" : ", ", each.interface, each.address.host()});
    }
  }
  return format_text(
      "{} ({}) is {}, by which other hosts cannot reach this one; set MASTER_ADDR to an address of rank 0's host, or "
      "DTRAIN_INTERFACE to an interface of this one{}{}",
      {own.name, own.address, is_bridge ? "a bridge for this machine's containers" : "the loopback interface",
       proposals.empty() ? "" : "; there are: ", proposals});
}

/// An InfiniBand port is active, but environment variables disable InfiniBand.
inline std::optional<std::string> unused_infiniband(const identity::Variables& variables, const SystemFiles& files) {
  const std::vector<std::string> ports = active_infiniband_ports(files);
  const std::vector<std::string> against = variables_against_infiniband(variables);
  if (ports.empty() || against.empty()) {
    return std::nullopt;
  }
  std::string names;
  for (const std::string& variable : against) {
    append_text(names, "{}{}", {names.empty() ? "" : " and ", variable});
  }
  const std::string more = ports.size() > 1 ? format_text(" and {} more", {ports.size() - 1}) : "";
  return format_text(
      "InfiniBand is up at {}{}, but {} {} the job from it; unset {}",
      {ports.front(), more, names, against.size() > 1 ? "keep" : "keeps", against.size() > 1 ? "them" : "it"});
}

/// InfiniBand needs locked memory. With a limit below 1 GiB a job exceeds it, or uses TCP instead.
inline std::optional<std::string> little_lockable_memory(const SystemFiles& files) {
  constexpr std::string_view label = "Max locked memory";
  const std::string limits = files.text("/proc/self/limits").value_or("");
  const std::size_t position = limits.find(label);
  if (position == std::string::npos || active_infiniband_ports(files).empty()) {
    return std::nullopt;
  }
  const std::size_t begin = limits.find_first_not_of(' ', position + label.size());
  const std::string soft = begin == std::string::npos ? "" : limits.substr(begin, limits.find(' ', begin) - begin);
  const std::optional<std::uint64_t> bytes = identity::parse_wide_integer(soft);
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

}  // namespace DTRAIN_NAMESPACE::launch
