#pragma once
/// @file
/// JsonTokens: reads a JSON text (RFC 8259) token by token, without a tree. append_json_text(): a string of one.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// Each function that returns a bool consumes what it is named after, or returns false if the text has something else.
/// Bytes above 0x7f are not checked (is_utf8). Lifetime: the text outlives the object.
class JsonTokens {
 public:
  explicit JsonTokens(std::string_view text) noexcept : text_(text) {}

  std::size_t position() const noexcept { return at_; }
  std::string_view text() const noexcept { return text_; }
  bool at_end() const noexcept { return at_ == text_.size(); }

  /// The next byte; 0 at the end.
  char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char wanted) noexcept {
    const bool there = at_ < text_.size() && text_[at_] == wanted;
    at_ += there ? 1 : 0;
    return there;
  }

  void skip_space() noexcept {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }

  /// `word`, which has the form of a token: "null".
  bool word(std::string_view word) noexcept {
    const bool there = text_.substr(at_, word.size()) == word;
    at_ += there ? word.size() : 0;
    return there;
  }

  /// @param text gets the string's bytes appended
  bool string(std::string& text);

  /// A string and a colon, and space around both.
  bool key(std::string& text);

  /// @param text gets the number's characters
  bool number(std::string_view& text);

  /// A value of any type, and space around it. @param depth the deepest nesting of arrays and objects
  bool skip_value(int depth);

  /// The members of an object or array: space, `open`, `member()` for each, and `close`. @param member consumes a
  /// member and the space around it, or returns false
  template <class Member>
  bool members(char open, char close, Member member) {
    skip_space();
    if (!take(open)) return false;
    skip_space();
    if (take(close)) return true;
    do {
      if (!member()) return false;
    } while (take(','));
    return take(close);
  }

 private:
  bool escape(std::string& text);
  bool four_digits(std::uint32_t& number);
  bool digits() noexcept;

  std::string_view text_;
  std::size_t at_ = 0;
};

/// Appends `text` as a string of JSON, with its quotes.
void append_json_text(std::string& json, std::string_view text);

#if DTRAIN_DEFINITIONS

namespace detail {

inline void append_utf8(std::string& text, std::uint32_t point) {
  constexpr std::uint32_t first[] = {0, 0xc0, 0xe0, 0xf0};
  const int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;  // bytes after the first one
  text += static_cast<char>(first[more] | (point >> (6 * more)));
  for (int left = more - 1; left >= 0; --left) {
    text += static_cast<char>(0x80 | ((point >> (6 * left)) & 0x3f));
  }
}

}  // namespace detail

DTRAIN_DEFINED bool JsonTokens::string(std::string& text) {
  if (!take('"')) {
    return false;
  }
  while (at_ < text_.size() && peek() != '"') {
    const char byte = text_[at_++];
    if (static_cast<unsigned char>(byte) < 0x20 || (byte == '\\' && !escape(text))) {
      return false;
    }
    if (byte != '\\') {
      text += byte;
    }
  }
  return take('"');
}

DTRAIN_DEFINED bool JsonTokens::escape(std::string& text) {
  constexpr std::string_view letters = "\"\\/bfnrt";
  constexpr std::string_view meant = "\"\\/\b\f\n\r\t";
  const std::size_t which = letters.find(peek());
  if (at_ < text_.size() && which != std::string_view::npos) {
    text += meant[which];
    ++at_;
    return true;
  }
  std::uint32_t point = 0;
  if (!take('u') || !four_digits(point)) {
    return false;
  }
  if (point >= 0xd800 && point < 0xe000) {  // UTF-16 surrogate pair, high half first
    std::uint32_t low = 0;
    if (point >= 0xdc00 || !take('\\') || !take('u') || !four_digits(low) || low < 0xdc00 || low >= 0xe000) {
      return false;
    }
    point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
  }
  detail::append_utf8(text, point);
  return true;
}

DTRAIN_DEFINED bool JsonTokens::four_digits(std::uint32_t& number) {
  constexpr std::string_view digits = "0123456789abcdef0123456789ABCDEF";
  for (int i = 0; i < 4; ++i) {
    const std::size_t digit = digits.find(peek());
    if (at_ == text_.size() || digit == std::string_view::npos) {
      return false;
    }
    number = number * 16 + static_cast<std::uint32_t>(digit % 16);
    ++at_;
  }
  return true;
}

DTRAIN_DEFINED bool JsonTokens::digits() noexcept {
  const std::size_t begin = at_;
  while (peek() >= '0' && peek() <= '9') {
    ++at_;
  }
  return at_ != begin;
}

DTRAIN_DEFINED bool JsonTokens::number(std::string_view& text) {
  const std::size_t begin = at_;
  take('-');
  if (!take('0') && !digits()) {
    return false;
  }
  if (take('.') && !digits()) {
    return false;
  }
  if (take('e') || take('E')) {
    static_cast<void>(take('+') || take('-'));
    if (!digits()) {
      return false;
    }
  }
  text = text_.substr(begin, at_ - begin);
  return true;
}

DTRAIN_DEFINED bool JsonTokens::key(std::string& text) {
  skip_space();
  const bool is_string = string(text);
  skip_space();
  const bool read = is_string && take(':');
  skip_space();
  return read;
}

DTRAIN_DEFINED bool JsonTokens::skip_value(int depth) {
  skip_space();
  std::string text;
  std::string_view number_text;
  const bool is_object = peek() == '{';
  const auto member = [&] {
    text.clear();
    return (!is_object || key(text)) && skip_value(depth - 1);
  };
  const bool read = is_object || peek() == '[' ? depth > 0 && members(peek(), is_object ? '}' : ']', member)
                    : peek() == '"'            ? string(text)
                                               : word("null") || word("true") || word("false") || number(number_text);
  skip_space();
  return read;
}

DTRAIN_DEFINED void append_json_text(std::string& json, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  json += '"';
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    if (value < 0x20) {
      json += "\\u00";
      json += digits[value >> 4];
      json += digits[value & 15];
    } else {
      if (byte == '"' || byte == '\\') json += '\\';
      json += byte;
    }
  }
  json += '"';
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
