#pragma once
/// @file
/// Secret: the key that the ranks of a job share; the handshake proves that both ends know it.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/rendezvous/protocol/random.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Both sides prove that they know it without sending it (see transcript.hpp). It guards the handshake, not the
/// connection: what follows is neither encrypted nor protected against somebody who can change what is on its way.
class Secret {
 public:
  static constexpr std::size_t fewest_characters = 16;
  static constexpr std::size_t most_characters = 4096;

  /// @param where it comes from, for the sentence: "DTRAIN_SECRET"
  /// @throws Error (usage) where it is too short to be one, or too long; the sentence does not quote it
  static Secret of(std::string text, std::string_view where) {
    if (text.size() < fewest_characters || text.size() > most_characters) {
      throw Error(Errc::usage, std::string(where) + " has " + std::to_string(text.size()) +
                                   " characters; a secret has " + std::to_string(fewest_characters) + " to " +
                                   std::to_string(most_characters) +
                                   ", for example those that `openssl rand -hex 32` prints");
    }
    return Secret(std::move(text));
  }

  /// 64 hexadecimal digits that nobody can guess. @throws Error (posix)
  static Secret drawn() { return Secret(hex(random_bytes<32>())); }

  /// What to pass on to those who are to join.
  const std::string& text() const noexcept { return text_; }
  std::span<const std::byte> bytes() const noexcept { return std::as_bytes(std::span(text_)); }

 private:
  explicit Secret(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
