#pragma once
/// @file
/// Sha256 (FIPS 180-4) and HmacSha256 (RFC 2104), both incremental; cryptographic random bytes and job ids.

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

/// The 32 bytes of a SHA-256 digest, in the standard's order.
using Sha256Digest = std::array<std::byte, 32>;

/// Two lower-case digits per byte, the first byte first.
std::string hex(std::span<const std::byte> bytes);

/// An incremental digest. A copy continues independently, so a common beginning (an HMAC's padded key) is hashed once.
/// Threads: one at a time.
class Sha256 {
 public:
  static constexpr std::size_t block_bytes = 64;

  /// Appends `bytes` to the message; the digest does not depend on its division into calls.
  Sha256& update(std::span<const std::byte> bytes) noexcept;

  Sha256& update(std::string_view text) noexcept { return update(std::as_bytes(std::span(text.data(), text.size()))); }

  /// The digest of the bytes so far; more may follow.
  Sha256Digest digest() const noexcept;

 private:
  void copy(std::span<const std::byte> bytes) noexcept;

  DTRAIN_ALWAYS_INLINE static std::uint32_t rotated(std::uint32_t value, int bits) noexcept {
    return value >> bits | value << (32 - bits);
  }

  /// Section 6.2.2, one block of 64 bytes. Without calls, which an unoptimised program would not inline.
  DTRAIN_OPTIMIZED void compress(const std::byte* block) noexcept;

  /// Section 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
  static constexpr std::array<std::uint32_t, 64> round_constants{
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

  /// Section 5.3.3: the first 32 bits of the fractional parts of the square roots of the first eight primes.
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, block_bytes> block_{};
  std::size_t pending_ = 0;
  std::uint64_t message_bytes_ = 0;
};

/// An incremental keyed digest: making and verifying it needs the key. A copy continues independently.
/// Threads: one at a time.
class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key) noexcept {
    const Sha256Digest hashed = Sha256().update(key).digest();
    const bool is_long = key.size() > Sha256::block_bytes;
    const std::span<const std::byte> used = is_long ? std::span<const std::byte>(hashed) : key;
    for (std::size_t i = 0; i < Sha256::block_bytes; ++i) {
      const std::byte each = i < used.size() ? used[i] : std::byte{0};
      const std::array<std::byte, 2> padded{each ^ std::byte{0x36}, each ^ std::byte{0x5c}};
      inner_.update(std::span(padded).first(1));
      outer_.update(std::span(padded).last(1));
    }
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

/// Bytes of getrandom(2). Blocking: only early in the boot of a machine. @throws Error (posix)
template <std::size_t N>
std::array<std::byte, N> random_bytes() {
  std::array<std::byte, N> bytes{};
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (count < 0 && errno != EINTR) {
      throw_errno("asking the system for random bytes");
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  return bytes;
}

/// 32 hexadecimal digits.
inline std::string random_job_id() {
  return hex(random_bytes<16>());
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte value : bytes) {
    text.push_back(digits[std::to_integer<std::size_t>(value >> 4)]);
    text.push_back(digits[std::to_integer<std::size_t>(value & std::byte{15})]);
  }
  return text;
}

DTRAIN_DEFINED Sha256& Sha256::update(std::span<const std::byte> bytes) noexcept {
  message_bytes_ += bytes.size();
  if (pending_ > 0) {
    const std::size_t taken = bytes.size() < block_bytes - pending_ ? bytes.size() : block_bytes - pending_;
    copy(bytes.first(taken));
    bytes = bytes.subspan(taken);
    if (pending_ < block_bytes) return *this;
    compress(block_.data());
    pending_ = 0;
  }
  for (; bytes.size() >= block_bytes; bytes = bytes.subspan(block_bytes)) {
    compress(bytes.data());
  }
  copy(bytes);
  return *this;
}

DTRAIN_DEFINED Sha256Digest Sha256::digest() const noexcept {
  // Section 5.1.1: a 1 bit, zeros, and the message's length in bits as 64 of them, to the end of a block.
  const std::uint64_t bits = message_bytes_ * 8;
  std::array<std::byte, 2 * block_bytes> padding{};
  padding[0] = std::byte{0x80};
  const std::size_t zeros_end = (pending_ < 56 ? 56 : 120) - pending_;
  for (std::size_t i = 0; i < 8; ++i) {
    padding[zeros_end + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  }
  Sha256 last = *this;
  last.update(std::span(padding).first(zeros_end + 8));
  Sha256Digest bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(last.state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return bytes;
}

DTRAIN_DEFINED void Sha256::copy(std::span<const std::byte> bytes) noexcept {
  if (bytes.empty()) return;  // memcpy from a null address is undefined even for no bytes
  std::memcpy(block_.data() + pending_, bytes.data(), bytes.size());
  pending_ += bytes.size();
}

DTRAIN_DEFINED DTRAIN_OPTIMIZED void Sha256::compress(const std::byte* block) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(block);
  const std::uint32_t* constants = round_constants.data();
  std::uint32_t* state = state_.data();
  std::uint32_t w[64];
  for (int t = 0; t < 16; ++t) {
    w[t] = std::uint32_t{bytes[4 * t]} << 24 | std::uint32_t{bytes[4 * t + 1]} << 16 |
           std::uint32_t{bytes[4 * t + 2]} << 8 | std::uint32_t{bytes[4 * t + 3]};
  }
  for (int t = 16; t < 64; ++t) {
    const std::uint32_t s0 = rotated(w[t - 15], 7) ^ rotated(w[t - 15], 18) ^ w[t - 15] >> 3;
    const std::uint32_t s1 = rotated(w[t - 2], 17) ^ rotated(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  std::uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int t = 0; t < 64; ++t) {
    const std::uint32_t t1 =
        h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + constants[t] + w[t];
    const std::uint32_t t2 = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
  state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
