#pragma once
/// @file
/// Formats of addresses in launchers' variables: "host", "host:port", "[IPv6 address]:port"; an Open MPI 4 daemon's
/// contact address.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

constexpr bool is_host_name_byte(char byte) noexcept {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '-' ||
         byte == '.' || byte == '_';
}

/// Bytes of host names and of IPv6 addresses, which may have an interface after '%'.
constexpr bool is_host_byte(char byte) noexcept {
  return is_host_name_byte(byte) || byte == ':' || byte == '%';
}

/// An entry of a list of hosts.
struct HostPort {
  std::string host;  ///< the host without brackets; not resolved
  std::optional<int> port;
};

/// Parses `entry`, an entry in the value of `variable`.
/// @throws IdentityError: ambiguous-address for an IPv6 address that is not [address]:port, bad-port, and `malformed`
/// for an invalid host
inline HostPort split_host_port(std::string_view variable, std::string_view entry, IdentityErrc malformed) {
  const auto fail = [&](IdentityErrc code, const char* problem) {
    throw_identity_error(code, "the entry {} {}", {quoted(variable, entry), problem});
  };
  const bool bracketed = !entry.empty() && entry.front() == '[';
  const auto colons = std::count(entry.begin(), entry.end(), ':');
  const std::size_t bracket = entry.find("]:");
  if (bracketed ? bracket == std::string_view::npos : colons > 1) {
    fail(IdentityErrc::ambiguous_address, "may be an IPv6 address with or without a port; write it as [address]:port");
  }
  const std::size_t colon = bracketed ? bracket + 1 : entry.find(':');
  const std::string_view host = bracketed ? entry.substr(1, bracket - 1) : entry.substr(0, colon);
  const bool is_address = bracketed && std::count(host.begin(), host.end(), ':') > 1;
  if (host.empty() || bracketed != is_address ||
      !(bracketed ? std::all_of(host.begin(), host.end(), is_host_byte)
                  : std::all_of(host.begin(), host.end(), is_host_name_byte))) {
    fail(malformed, "names no host; write it as host:port");
  }
  HostPort parts{std::string(host), std::nullopt};
  if (colon != std::string_view::npos) {
    parts.port = parse_port(entry.substr(colon + 1));
    if (!parts.port) {
      fail(IdentityErrc::bad_port, "has no port from 1 to 65535 behind its colon; write it as host:port");
    }
  }
  return parts;
}

/// The contact address of an Open MPI 4 daemon (ORTE): "1571946496.0;tcp://192.0.2.2:54609;tcp6://[fd00::2]:35257".
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
