#pragma once
/// @file
/// sanitize(), in_quotes(): text of other processes for errors and logs, with escapes for what a terminal would
/// interpret.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// Size in bytes of the first UTF-8 character of `text` if it is printable, otherwise 0. Not printable: control
/// characters (C0, DEL, C1), characters that change the text direction, line and paragraph separators, and invalid
/// UTF-8 (also overlong forms and surrogates).
std::size_t printable_character_bytes(std::string_view text) noexcept;

}  // namespace detail

/// The text with every byte of unprintable characters written as \n, \r, \t or \x1b. Text of another process passes
/// through here before it becomes part of a message: it cannot move the cursor or begin a line. Printable text is
/// unchanged.
std::string sanitize(std::string_view text);

/// Position of the first byte that is not UTF-8 (RFC 3629); npos if there is none.
std::size_t first_invalid_utf8(std::string_view text) noexcept;

/// The longest prefix of at most `longest` bytes that does not end inside a UTF-8 character.
std::string_view truncate_utf8(std::string_view text, std::size_t longest);

/// A printable excerpt of any text for a message, with "..." if it is truncated.
std::string excerpt(std::string_view text, std::size_t longest = 128);

/// excerpt() in single quotes.
std::string in_quotes(std::string_view text, std::size_t longest = 128);

#if DTRAIN_DEFINITIONS

namespace detail {

/// Size in bytes of the first character of `text`, which `code` gets; 0 if it is not UTF-8.
inline std::size_t utf8_character_bytes(std::string_view text, std::uint32_t& code) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  code = first;
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (first < 0xc0 || first > 0xf4 || text.size() < length) {
    return 0;
  }
  code = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) {
      return 0;
    }
    code = (code << 6) | (byte(i) & 0x3fU);
  }
  const bool is_character = code >= smallest[length] && code <= 0x10ffff && (code < 0xd800 || code >= 0xe000);
  return is_character ? length : 0;
}

DTRAIN_DEFINED std::size_t printable_character_bytes(std::string_view text) noexcept {
  std::uint32_t code = 0;
  const std::size_t length = utf8_character_bytes(text, code);
  const bool hidden = code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
                      (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return hidden ? 0 : length;
}

}  // namespace detail

DTRAIN_DEFINED std::string sanitize(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = detail::printable_character_bytes(text);
    if (length > 0) {
      shown += text.substr(0, length);
      text.remove_prefix(length);
      continue;
    }
    const auto byte = static_cast<unsigned char>(text.front());
    text.remove_prefix(1);
    if (byte == '\n' || byte == '\r' || byte == '\t') {
      shown += byte == '\n' ? "\\n" : byte == '\r' ? "\\r" : "\\t";
    } else {
      shown += {'\\', 'x', digits[byte >> 4], digits[byte & 0xf]};
    }
  }
  return shown;
}

DTRAIN_DEFINED std::size_t first_invalid_utf8(std::string_view text) noexcept {
  std::uint32_t code = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = detail::utf8_character_bytes(text.substr(at), code);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

DTRAIN_DEFINED std::string_view truncate_utf8(std::string_view text, std::size_t longest) {
  std::size_t length = std::min(text.size(), longest);
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;
  }
  return text.substr(0, length);
}

DTRAIN_DEFINED std::string excerpt(std::string_view text, std::size_t longest) {
  return std::string(truncate_utf8(sanitize(text.substr(0, longest)), longest)) + (text.size() > longest ? "..." : "");
}

DTRAIN_DEFINED std::string in_quotes(std::string_view text, std::size_t longest) {
  return "'" + excerpt(text, longest) + "'";
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
