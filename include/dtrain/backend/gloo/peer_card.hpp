#pragma once
/// @file
/// What a rank writes into the store about where it listens.

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/error.hpp"
#include "dtrain/core/printable.hpp"

namespace DTRAIN_NAMESPACE::backend::gloo {

/// One listening socket for each peer.
struct PeerCard {
  int job_rank = 0;
  std::string host;               ///< its name
  std::string device;             ///< the numeric address that it listens at
  std::size_t address_bytes = 0;  ///< of one address, in Gloo's own form
  std::string addresses;          ///< one behind the other, for the peers in the order of ranks
};

/// "gloo 3 128 10.0.0.2 host-b\n" and the addresses.
inline std::string to_text(const PeerCard& card) {
  return "gloo " + std::to_string(card.job_rank) + " " + std::to_string(card.address_bytes) + " " + card.device + " " +
         card.host + "\n" + card.addresses;
}

/// @throws Error (protocol) where the text is none
inline PeerCard peer_card_from(const std::string& text) {
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
  PeerCard card;
  const bool opens = line != std::string::npos && rest.starts_with(tag);
  if (opens) {
    rest.remove_prefix(tag.size());
  }
  if (!opens || !number(card.job_rank) || !number(card.address_bytes) || card.job_rank < 0) {
    throw Error(Errc::protocol, "a rank's addresses for Gloo came as '" + printable(text.substr(0, 64)) +
                                    "'; do all ranks run the same program?");
  }
  card.device = word();
  card.host = rest;
  card.addresses = text.substr(line + 1);
  return card;
}

}  // namespace DTRAIN_NAMESPACE::backend::gloo
