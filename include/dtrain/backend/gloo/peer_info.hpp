#pragma once
/// @file
/// PeerInfo: the addresses at which a rank listens, as published in the store.

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/error.hpp"
#include "dtrain/core/sanitize.hpp"

namespace DTRAIN_NAMESPACE::backend::gloo {

/// One listening socket for each peer.
struct PeerInfo {
  int job_rank = 0;
  std::string host;               ///< host name
  std::string device;             ///< the numeric address of its sockets
  std::size_t address_bytes = 0;  ///< size of one address, in Gloo's own format
  std::string addresses;          ///< concatenated, for the peers in rank order
};

/// "gloo 3 128 10.0.0.2 host-b\n" and the addresses.
inline std::string to_text(const PeerInfo& info) {
  return "gloo " + std::to_string(info.job_rank) + " " + std::to_string(info.address_bytes) + " " + info.device + " " +
         info.host + "\n" + info.addresses;
}

/// @throws Error (protocol) if the text is malformed
inline PeerInfo peer_info_from(const std::string& text) {
  constexpr std::string_view tag = "gloo ";
  const std::size_t line = text.find('\n');
  std::string_view rest = std::string_view(text).substr(0, line);
  const auto word = [&] {
    const std::size_t space = rest.find(' ');
    const std::string_view first = rest.substr(0, space);
    rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
    return first;
  };
  const auto number = [&](auto& value) {
    const std::string_view digits = word();
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  PeerInfo info;
  const bool opens = line != std::string::npos && rest.starts_with(tag);
  if (opens) {
    rest.remove_prefix(tag.size());
  }
  if (!opens || !number(info.job_rank) || !number(info.address_bytes) || info.job_rank < 0) {
    throw Error(Errc::protocol, "a rank's addresses for Gloo came as '" + sanitize(text.substr(0, 64)) +
                                    "'; do all ranks run the same program?");
  }
  info.device = word();
  info.host = rest;
  info.addresses = text.substr(line + 1);
  return info;
}

}  // namespace DTRAIN_NAMESPACE::backend::gloo
