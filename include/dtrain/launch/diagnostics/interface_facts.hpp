#pragma once
/// @file
/// Properties of a network interface from /sys: speed, and whether it is a container bridge.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"

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
    text += "." + std::to_string(tenths);
  }
  return text + " Gbit/s";
}

/// Whether the interface is a bridge for the containers of one machine. Other hosts cannot reach its address.
inline bool is_container_bridge(std::string_view name) {
  const auto begins = [name](std::string_view start) { return name.substr(0, start.size()) == start; };
  const bool docker_network =  // br-0123456789ab
      name.size() == 15 && begins("br-") && name.find_first_not_of("0123456789abcdef", 3) == std::string_view::npos;
  return docker_network || begins("docker") || begins("podman") || begins("cni") || begins("lxcbr") ||
         begins("lxdbr") || begins("virbr");
}

}  // namespace DTRAIN_NAMESPACE::launch
