#pragma once
/// @file
/// ByteReader: bounds-checked decoding of ByteWriter's encoding, from untrusted bytes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::net {

/// Reads values in order. A missing value, or one beyond its bound, makes ok() false permanently; every later read
/// returns zero or an empty value. So code reads a whole message and checks once: `if (!reader.finished()) ...`.
/// Lifetime: the bytes outlive the reader and its spans.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : left_(bytes) {}
  explicit ByteReader(std::string_view characters) noexcept
      : left_(std::as_bytes(std::span(characters.data(), characters.size()))) {}

  std::uint8_t u8() noexcept { return static_cast<std::uint8_t>(little_endian(1)); }
  std::uint16_t u16() noexcept { return static_cast<std::uint16_t>(little_endian(2)); }
  std::uint32_t u32() noexcept { return static_cast<std::uint32_t>(little_endian(4)); }
  std::uint64_t u64() noexcept { return little_endian(8); }
  std::int64_t i64() noexcept { return static_cast<std::int64_t>(little_endian(8)); }

  /// `count` bytes without a length.
  std::span<const std::byte> raw(std::size_t count) noexcept {
    if (!ok_ || count > left_.size()) {
      fail();
      return {};
    }
    const std::span<const std::byte> taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }

  /// A length and that many bytes, at most `most`; nothing is allocated.
  std::span<const std::byte> bytes(std::size_t most) noexcept {
    const std::uint32_t count = u32();
    if (count > most) {
      fail();
      return {};
    }
    return raw(count);
  }

  /// A length and that many characters, at most `most`.
  std::string string(std::size_t most) {
    const std::span<const std::byte> content = bytes(most);
    return {reinterpret_cast<const char*>(content.data()), content.size()};
  }

  /// Marks the message as malformed: for code that reads an impossible value.
  void fail() noexcept {
    ok_ = false;
    left_ = {};
  }

  bool ok() const noexcept { return ok_; }
  std::size_t remaining() const noexcept { return left_.size(); }

  /// Whether every read succeeded and no byte is left.
  bool finished() const noexcept { return ok_ && left_.empty(); }

 private:
  std::uint64_t little_endian(std::size_t count) noexcept {
    const std::span<const std::byte> encoded = raw(count);
    std::uint64_t value = 0;
    for (std::size_t i = encoded.size(); i > 0; --i) {
      value = (value << 8) | std::to_integer<std::uint64_t>(encoded[i - 1]);
    }
    return value;
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace DTRAIN_NAMESPACE::net
