#pragma once
/// @file
/// FieldWriter and FieldReader: one description of a message's fields serves both directions.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/core/sanitize.hpp"
#include "dtrain/net/framing/byte_reader.hpp"
#include "dtrain/net/framing/byte_writer.hpp"
#include "dtrain/net/framing/frame.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Appends fields to a frame. A text that is longer than the receiver accepts is cut.
class FieldWriter {
 public:
  void number(std::uint16_t value) { out_.u16(value); }
  void number(std::uint32_t value) { out_.u32(value); }
  void number(std::uint64_t value) { out_.u64(value); }
  void number(std::int64_t value) { out_.i64(value); }

  /// An integer in first..last, which the reader checks.
  void number(int value, int, int) { out_.u32(static_cast<std::uint32_t>(value)); }
  void number(const std::optional<int>& value, int, int) { out_.u32(static_cast<std::uint32_t>(value.value_or(-1))); }

  template <class E>
  void choice(E value, E, E) {
    out_.u8(static_cast<std::uint8_t>(value));
  }
  void text(const std::string& value, std::size_t longest) { out_.string(truncate_utf8(value, longest)); }
  void raw_text(const std::string& value, std::size_t longest) { text(value, longest); }
  /// A value of 4 KiB or more is not copied but becomes a shared part. @pre it has at most `longest` bytes
  void raw_text(const SharedValue& value, std::size_t longest) {
    if (value == nullptr || value->size() < shared_from) {
      text(value == nullptr ? std::string() : *value, longest);
    } else {
      out_.u32(static_cast<std::uint32_t>(value->size()));
      parts_.push_back({out_.view().size(), value});
    }
  }
  void raw_texts(const std::vector<std::string>& values, std::size_t, std::size_t longest) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const std::string& value : values) {
      text(value, longest);
    }
  }
  void flag(bool value) { out_.u8(value ? 1 : 0); }
  template <std::size_t N>
  void bytes(const std::array<std::byte, N>& value) {
    out_.raw(value);
  }

  std::vector<std::byte> take() { return out_.take(); }
  std::vector<net::SharedBytes> take_parts() { return std::exchange(parts_, {}); }
  std::span<const std::byte> view() const noexcept { return out_.view(); }
  void clear() noexcept { out_.clear(); }

 private:
  static constexpr std::size_t shared_from = std::size_t{4} << 10;  ///< copying fewer bytes is faster than sharing them

  net::ByteWriter out_;
  std::vector<net::SharedBytes> parts_;
};

/// Reads fields from untrusted bytes. After the first invalid field, finished() stays false.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : in_(bytes) {}

  void number(std::uint16_t& value) { value = in_.u16(); }
  void number(std::uint32_t& value) { value = in_.u32(); }
  void number(std::uint64_t& value) { value = in_.u64(); }
  void number(std::int64_t& value) { value = in_.i64(); }

  void number(int& value, int first, int last) {
    const auto found = static_cast<std::int32_t>(in_.u32());
    require(found >= first && found <= last);
    value = in_.ok() ? found : first;
  }
  void number(std::optional<int>& value, int first, int last) {
    const auto found = static_cast<std::int32_t>(in_.u32());
    require(found == -1 || (found >= first && found <= last));
    value = in_.ok() && found != -1 ? std::optional<int>(found) : std::nullopt;
  }

  template <class E>
  void choice(E& value, E first, E last) {
    const std::uint8_t found = in_.u8();
    require(found >= static_cast<std::uint8_t>(first) && found <= static_cast<std::uint8_t>(last));
    value = in_.ok() ? static_cast<E>(found) : first;
  }

  /// A name or a sentence, sanitized: printable, whatever bytes the peer sent.
  void text(std::string& value, std::size_t longest) {
    value = sanitize(in_.string(longest));
    value.resize(truncate_utf8(value, longest).size());
  }

  /// Any bytes: a key or a value. Error sentences contain them only through in_quotes() or sanitize().
  void raw_text(std::string& value, std::size_t longest) { value = in_.string(longest); }

  /// One to `most` texts. Memory grows with the texts that are present, not with the announced count.
  void raw_texts(std::vector<std::string>& values, std::size_t most, std::size_t longest) {
    const std::uint32_t count = in_.u32();
    require(count >= 1 && count <= most);
    for (std::uint32_t i = 0; i < count && in_.ok(); ++i) {
      values.push_back(in_.string(longest));
    }
  }
  void flag(bool& value) {
    const std::uint8_t found = in_.u8();
    require(found <= 1);
    value = in_.ok() && found == 1;
  }
  template <std::size_t N>
  void bytes(std::array<std::byte, N>& value) {
    const std::span<const std::byte> found = in_.raw(N);
    std::copy(found.begin(), found.end(), value.begin());
  }

  bool ok() const noexcept { return in_.ok(); }
  bool finished() const noexcept { return in_.finished(); }

 private:
  void require(bool holds) {
    if (!holds) {
      in_.fail();
    }
  }

  net::ByteReader in_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
