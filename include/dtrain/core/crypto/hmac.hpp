#pragma once
/// @file
/// HmacSha256: HMAC-SHA256 as RFC 2104 specifies it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "dtrain/core/crypto/sha256.hpp"

namespace DTRAIN_NAMESPACE {

/// An incremental keyed digest: making and verifying it needs the key. A copy continues independently.
/// Threads: one at a time.
class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key) noexcept {
    std::array<std::byte, Sha256::block_bytes> block{};
    const Sha256Digest hashed = key.size() > block.size() ? Sha256().update(key).digest() : Sha256Digest{};
    const std::span<const std::byte> used = key.size() > block.size() ? std::span<const std::byte>(hashed) : key;
    for (std::size_t i = 0; i < used.size(); ++i) {
      block[i] = used[i];
    }
    inner_.update(xored(block, std::byte{0x36}));
    outer_.update(xored(block, std::byte{0x5c}));
  }

  HmacSha256& update(std::span<const std::byte> bytes) noexcept {
    inner_.update(bytes);
    return *this;
  }
  HmacSha256& update(std::string_view text) noexcept {
    return update(std::as_bytes(std::span(text.data(), text.size())));
  }

  /// The digest of the bytes so far; more may follow.
  Sha256Digest digest() const noexcept {
    const Sha256Digest inner = inner_.digest();
    return Sha256(outer_).update(inner).digest();
  }

 private:
  static std::array<std::byte, Sha256::block_bytes> xored(std::array<std::byte, Sha256::block_bytes> block,
                                                          std::byte pad) noexcept {
    for (std::byte& each : block) {
      each ^= pad;
    }
    return block;
  }

  Sha256 inner_;
  Sha256 outer_;
};

/// Whether two digests are equal, in a time that does not depend on the position of a difference.
inline bool equal_in_constant_time(const Sha256Digest& a, const Sha256Digest& b) noexcept {
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<std::uint8_t>(difference | std::to_integer<unsigned>(a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace DTRAIN_NAMESPACE
