#pragma once
/// @file
/// Texts for sentences: cut to a bound, quoted, the version.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "dtrain/core/printable.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// As much of a text as fits into `longest` bytes, not ending inside a character of UTF-8.
inline std::string_view cut(std::string_view text, std::size_t longest) {
  std::size_t length = std::min(text.size(), longest);
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;
  }
  return text.substr(0, length);
}

/// 'a key' as a sentence may have it, whatever its bytes are.
inline std::string in_quotes(std::string_view key) {
  constexpr std::size_t longest = 128;
  return "'" + std::string(cut(printable(key.substr(0, longest)), longest)) + (key.size() > longest ? "...'" : "'");
}

/// "0.1.0"
inline std::string version_text() {
  return std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.patch);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
