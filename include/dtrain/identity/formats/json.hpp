#pragma once
/// @file
/// JSON reader for texts from outside, as variables of a cluster: strict (RFC 8259), bounded in size and depth.
/// json_string(): writes a string.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// A JSON value and the values inside it.
struct Json {
  enum class Type : std::uint8_t { null, boolean, number, string, array, object };

  Type type = Type::null;
  std::string text;               ///< bytes of a string; literal text of a number, null, true or false
  std::vector<Json> items;        ///< values of an array or object
  std::vector<std::string> keys;  ///< keys of an object: keys[i] belongs to items[i]; all differ

  bool is(Type wanted) const noexcept { return type == wanted; }

  /// The value of a key of an object; nullptr if the key is missing, or if this is no object.
  const Json* find(std::string_view key) const noexcept {
    const auto found = std::find(keys.begin(), keys.end(), key);
    return found == keys.end() ? nullptr : &items[static_cast<std::size_t>(found - keys.begin())];
  }
};

/// Longest document in bytes: twice the length that Linux allows for a variable.
inline constexpr std::size_t longest_json = 256 * 1024;
/// Deepest nesting of arrays and objects.
inline constexpr int deepest_json = 32;
/// The most values in one Json, which takes some hundred bytes for each.
inline constexpr std::size_t most_json_values = 1'000'000;

namespace detail {

inline void append_utf8(std::string& text, std::uint32_t point) {
  constexpr std::uint32_t first[] = {0, 0xc0, 0xe0, 0xf0};
  const int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;  // bytes after the first one
  text += static_cast<char>(first[more] | (point >> (6 * more)));
  for (int left = more - 1; left >= 0; --left) {
    text += static_cast<char>(0x80 | ((point >> (6 * left)) & 0x3f));
  }
}

/// Each function consumes the element that it is named after; it returns false if the text has another element.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) noexcept : text_(text) {}

  bool document(Json& value) { return text_.size() <= longest_json && element(value, 0) && at_ == text_.size(); }

  template <class Member>
  bool object(Member member) {
    skip_space();
    if (!take('{')) return false;
    skip_space();
    if (!take('}')) {
      do {
        std::string name;
        Json value;
        values_ = 0;
        if (!key(name) || !element(value, 1) || !member(std::move(name), value)) return false;
      } while (take(','));
      if (!take('}')) return false;
    }
    skip_space();
    return at_ == text_.size();
  }

  std::size_t position() const noexcept { return at_; }

 private:
  bool element(Json& value, int depth) {
    skip_space();
    const bool read = ++values_ <= most_json_values && this->value(value, depth);
    skip_space();
    return read;
  }

  bool value(Json& value, int depth) {
    const char first = peek();
    if (take('{') || take('[')) {
      value.type = first == '{' ? Json::Type::object : Json::Type::array;
      return depth < deepest_json && members(value, depth, first == '{' ? '}' : ']');
    }
    if (first == '"') {
      value.type = Json::Type::string;
      return string(value.text);
    }
    return word(value, "null", Json::Type::null) || word(value, "true", Json::Type::boolean) ||
           word(value, "false", Json::Type::boolean) || number(value);
  }

  /// The members of an object or array after its opening bracket, and the closing one, `end`.
  bool members(Json& value, int depth, char end) {
    skip_space();
    if (take(end)) {
      return true;
    }
    do {
      if (value.is(Json::Type::object) && !key(value.keys.emplace_back())) {
        return false;
      }
      if (!element(value.items.emplace_back(), depth + 1)) {
        return false;
      }
    } while (take(','));
    return take(end) && all_differ(value.keys);
  }

  bool key(std::string& text) {
    skip_space();
    const bool read = string(text);
    skip_space();
    return read && take(':');
  }

  /// Rejects a key that occurs twice: other readers may use its first value or its last.
  static bool all_differ(const std::vector<std::string>& keys) {
    return std::set<std::string_view>(keys.begin(), keys.end()).size() == keys.size();
  }

  bool string(std::string& text) {
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

  bool escape(std::string& text) {
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
    append_utf8(text, point);
    return true;
  }

  bool four_digits(std::uint32_t& number) {
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

  bool number(Json& value) {
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
    value.type = Json::Type::number;
    value.text = text_.substr(begin, at_ - begin);
    return true;
  }

  bool digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') {
      ++at_;
    }
    return at_ != begin;
  }

  bool word(Json& value, std::string_view word, Json::Type type) {
    if (text_.substr(at_, word.size()) != word) {
      return false;
    }
    at_ += word.size();
    value.type = type;
    value.text = word;
    return true;
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }

  char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char wanted) {
    const bool there = at_ < text_.size() && text_[at_] == wanted;
    at_ += there ? 1 : 0;
    return there;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;  ///< number of values of the present Json
};

}  // namespace detail

/// nullopt if the text is not one JSON document, has a key twice in an object, or exceeds the bounds of size and depth.
inline std::optional<Json> parse_json(std::string_view text) {
  std::optional<Json> value(std::in_place);
  return detail::JsonReader(text).document(*value) ? std::move(value) : std::nullopt;
}

/// Reads one object of any size, whose members are documents: `member(std::move(key), value)` for each, which returns
/// whether to go on. The keys of the object itself may be equal.
/// @returns nullopt if the text is such an object; else the position of the first byte that is not
template <class Member>
std::optional<std::size_t> read_json_members(std::string_view text, Member member) {
  detail::JsonReader reader(text);
  return reader.object(member) ? std::nullopt : std::optional(reader.position());
}

/// `text`, which is UTF-8, as a string of JSON, with its quotes.
inline std::string json_string(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    if (value < 0x20) {
      quoted += {'\\', 'u', '0', '0', digits[value >> 4], digits[value & 15]};
    } else {
      if (byte == '"' || byte == '\\') quoted += '\\';
      quoted += byte;
    }
  }
  return quoted + '"';
}

}  // namespace DTRAIN_NAMESPACE::identity
