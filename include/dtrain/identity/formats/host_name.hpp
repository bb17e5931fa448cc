#pragma once
/// @file
/// Host-name bytes: the bytes that are valid in host names and addresses.

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::identity {

constexpr bool is_host_name_byte(char byte) noexcept {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '-' ||
         byte == '.' || byte == '_';
}

/// Bytes of host names and of IPv6 addresses, which may have an interface after '%'.
constexpr bool is_host_byte(char byte) noexcept {
  return is_host_name_byte(byte) || byte == ':' || byte == '%';
}

}  // namespace DTRAIN_NAMESPACE::identity
