#pragma once
/// @file
/// Secret: the key that the ranks of a job share; the handshake proves that both ends know it.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Both sides prove that they know the secret without sending it (transcript.hpp). It protects the handshake only:
/// later bytes are neither encrypted nor protected against an attacker who can change them on the network.
class Secret {
 public:
  static constexpr std::size_t fewest_characters = 16;
  static constexpr std::size_t most_characters = 4096;

  /// @param where the text comes from, for the error sentence: "DTRAIN_SECRET"
  /// @throws Error (usage) unless the text has 16 to 4096 characters; the sentence does not quote it
  static Secret of(std::string text, std::string_view where);

  /// A new random secret of 64 hexadecimal digits. @throws Error (posix)
  static Secret drawn();

  /// The text to pass on to the processes that are to join.
  const std::string& text() const noexcept { return text_; }
  std::span<const std::byte> bytes() const noexcept { return std::as_bytes(std::span(text_.data(), text_.size())); }

 private:
  explicit Secret(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

#include "dtrain/core/crypto/random.hpp"
#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

DTRAIN_DEFINED Secret Secret::of(std::string text, std::string_view where) {
  if (text.size() < fewest_characters || text.size() > most_characters) {
    throw_error(Errc::usage,
                "{} has {} characters; a secret has {} to {}, for example those that `openssl rand -hex 32` prints",
                {where, text.size(), fewest_characters, most_characters});
  }
  return Secret(std::move(text));
}

DTRAIN_DEFINED Secret Secret::drawn() {
  return Secret(hex(random_bytes<32>()));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
