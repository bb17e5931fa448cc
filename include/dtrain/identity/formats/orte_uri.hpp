#pragma once
/// @file
/// ORTE URI: contact address of an Open MPI 4 daemon, "1571946496.0;tcp://192.0.2.2:54609;tcp6://[fd00::2]:35257".

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/text/split.hpp"
#include "dtrain/identity/formats/host_port.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct OrteUri {
  std::uint64_t job = 0;     ///< the same for mpirun and all its daemons
  std::uint64_t daemon = 0;  ///< 0 is mpirun itself (the HNP)
  std::string host;          ///< the first address that is not a loopback one; empty if there is none
};

namespace detail {

inline bool is_loopback(std::string_view address) noexcept {
  return address.substr(0, 4) == "127." || address == "::1" || address == "localhost";
}

/// The first address of "tcp://A,B:port" or "tcp6://[A,B]:port" that is not a loopback one; empty if there is none.
inline std::string reachable_host(std::string_view contact) {
  const std::size_t begin = contact.find("://");
  const std::size_t end = contact.rfind(':');
  if (contact.substr(0, 3) != "tcp" || begin == std::string_view::npos || end <= begin) {
    return {};
  }
  std::string_view hosts = contact.substr(begin + 3, end - begin - 3);
  if (!hosts.empty() && hosts.front() == '[' && hosts.back() == ']') {
    hosts = hosts.substr(1, hosts.size() - 2);
  }
  while (!hosts.empty()) {
    const std::string_view host = next_entry(hosts, ',');
    if (!host.empty() && !is_loopback(host) && std::all_of(host.begin(), host.end(), is_host_byte)) {
      return std::string(host);
    }
  }
  return {};
}

}  // namespace detail

/// nullopt, not an error, for a text that does not begin with "JOB.DAEMON": the address is only a hint.
inline std::optional<OrteUri> parse_orte_uri(std::string_view uri) {
  std::string_view name = next_entry(uri, ';');
  const std::optional<std::uint64_t> job = parse_wide_integer(next_entry(name, '.'));
  const std::optional<std::uint64_t> daemon = parse_wide_integer(name);
  if (!job || !daemon) {
    return std::nullopt;
  }
  OrteUri parsed{*job, *daemon, {}};
  while (!uri.empty() && parsed.host.empty()) {
    parsed.host = detail::reachable_host(next_entry(uri, ';'));
  }
  return parsed;
}

}  // namespace DTRAIN_NAMESPACE::identity
