#pragma once
/// @file
/// ByteWriter: encoding of little-endian integers and length-prefixed bytes.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::net {

/// Appends to a growing array. The result does not depend on the machine's byte order.
class ByteWriter {
 public:
  ByteWriter& u8(std::uint8_t value) { return little_endian(value, 1); }
  ByteWriter& u16(std::uint16_t value) { return little_endian(value, 2); }
  ByteWriter& u32(std::uint32_t value) { return little_endian(value, 4); }
  ByteWriter& u64(std::uint64_t value) { return little_endian(value, 8); }
  ByteWriter& i64(std::int64_t value) { return u64(static_cast<std::uint64_t>(value)); }

  /// The bytes without a length.
  ByteWriter& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }

  /// A u32 with the number of bytes, then these. @throws Error (limit) beyond 2^32 - 1 bytes
  ByteWriter& bytes(std::span<const std::byte> content) {
    if (content.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw Error(Errc::limit, "encoding " + std::to_string(content.size()) + " bytes; at most 2^32 - 1 are possible");
    }
    u32(static_cast<std::uint32_t>(content.size()));
    return raw(content);
  }
  ByteWriter& string(std::string_view text) { return bytes(std::as_bytes(std::span(text.data(), text.size()))); }

  std::span<const std::byte> view() const noexcept { return bytes_; }
  /// The same as characters.
  std::string_view characters() const noexcept { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  std::vector<std::byte> take() noexcept { return std::exchange(bytes_, {}); }
  /// Removes all bytes and keeps the memory.
  void clear() noexcept { bytes_.clear(); }

 private:
  ByteWriter& little_endian(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i, value >>= 8) {
      bytes_.push_back(static_cast<std::byte>(value & 0xff));
    }
    return *this;
  }

  std::vector<std::byte> bytes_;
};

}  // namespace DTRAIN_NAMESPACE::net
