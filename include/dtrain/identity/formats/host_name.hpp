#pragma once
/// @file
/// Which bytes a host's name or address may have, in variables that others set.

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::identity {

constexpr bool is_host_name_byte(char byte) noexcept {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '-' ||
         byte == '.' || byte == '_';
}

/// A name's, or those of an IPv6 address, which may name an interface behind '%'.
constexpr bool is_host_byte(char byte) noexcept {
  return is_host_name_byte(byte) || byte == ':' || byte == '%';
}

}  // namespace DTRAIN_NAMESPACE::identity
