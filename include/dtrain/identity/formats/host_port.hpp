#pragma once
/// @file
/// Host and port: parser of "host", "host:port" and "[IPv6 address]:port".

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/version.hpp"
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
  std::string host;  ///< without brackets; not resolved
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

}  // namespace DTRAIN_NAMESPACE::identity
