#pragma once
/// @file
/// Secret: the key that a job's ranks share. Transcript: the frames of one handshake, over which both sides prove that
/// they know it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Both sides prove that they know the secret without sending it (Transcript). It protects the handshake only:
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

/// The side that makes a proof. Each has its own label, so a proof cannot be sent back as the other side's.
enum class ProofSide : std::uint8_t { rank, store };

/// The frames of one handshake in order, each with its length. A proof is the HMAC-SHA256 (RFC 2104) under the secret
/// of a label and the SHA-256 of these frames, up to the proof itself, which ends its frame. It covers both nonces, so
/// that it cannot be replayed; protocol version, dtrain's version, role and attempt, which are in the Hello; and all
/// else in its frame. The store's proof covers the rank's. Pure.
class Transcript {
 public:
  void add(std::span<const std::byte> frame) noexcept { append(hash_, frame); }

  /// The proof for a frame whose last bytes are reserved for it. The frame is not added.
  Proof proof_for(ProofSide side, const Secret& secret, std::span<const std::byte> frame) const noexcept {
    Sha256 hash = hash_;
    append(hash, frame.first(frame.size() - std::min(frame.size(), sizeof(Proof))));
    constexpr std::string_view rank_label = "dtrain: a rank's proof";
    constexpr std::string_view store_label = "dtrain: the store's proof";
    const std::string_view label = side == ProofSide::rank ? rank_label : store_label;
    return HmacSha256(secret.bytes()).update(label).update(hash.digest()).digest();
  }

  /// Writes the proof over the last bytes of a frame of this process.
  void prove(ProofSide side, const Secret& secret, std::span<std::byte> frame) const noexcept {
    const Proof proof = proof_for(side, secret, frame);
    std::copy(proof.begin(), proof.end(), frame.end() - static_cast<std::ptrdiff_t>(proof.size()));
  }

  /// Whether a received frame ends with the right proof.
  bool is_proved(ProofSide side, const Secret& secret, std::span<const std::byte> frame) const noexcept {
    if (frame.size() < sizeof(Proof)) {
      return false;
    }
    Proof given{};
    std::copy(frame.end() - sizeof(Proof), frame.end(), given.begin());
    return equal_in_constant_time(given, proof_for(side, secret, frame));
  }

 private:
  static void append(Sha256& hash, std::span<const std::byte> frame) noexcept {
    std::array<std::byte, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<std::byte>((static_cast<std::uint64_t>(frame.size()) >> (8 * i)) & 0xffU);
    }
    hash.update(length).update(frame);
  }

  Sha256 hash_;
};

#if DTRAIN_DEFINITIONS

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

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::rendezvous
