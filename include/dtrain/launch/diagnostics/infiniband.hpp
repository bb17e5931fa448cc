#pragma once
/// @file
/// InfiniBand: active ports of this machine, and environment variables that disable them.

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/sanitize.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Active ports, such as "mlx5_0 port 1 (200 Gb/sec (4X HDR))"; without ports of Ethernet adapters (RoCE).
inline std::vector<std::string> active_infiniband_ports(const SystemFiles& files) {
  const std::string all = "/sys/class/infiniband";
  std::vector<std::string> active;
  for (const std::string& adapter : files.names(all)) {
    const std::string ports = all + "/" + adapter + "/ports";
    for (const std::string& port : files.names(ports)) {
      const std::string folder = ports + "/" + port;
      const bool is_up = files.line(folder + "/state").value_or("").find("ACTIVE") != std::string::npos;
      if (is_up && files.line(folder + "/link_layer") == "InfiniBand") {
        const std::optional<std::string> rate = files.line(folder + "/rate");
        active.push_back(sanitize(adapter + " port " + port + (rate ? " (" + rate->substr(0, 64) + ")" : "")));
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
  const auto check = [&](const char* name, const auto& disables) {
    const std::optional<std::string> value = variables.text(name);
    if (value && disables(*value)) {
      found.push_back(identity::quoted(name, *value));
    }
  };
  check("NCCL_IB_DISABLE", [](const std::string& value) { return value != "0"; });
  check("UCX_TLS", [](const std::string& value) { return detail::leaves_out(value, {"all", "ib", "rc", "ud", "dc"}); });
  check("FI_PROVIDER", [](const std::string& value) {
    return detail::leaves_out(value, {"verbs", "psm", "mlx", "opx"});
  });
  return found;
}

}  // namespace DTRAIN_NAMESPACE::launch
