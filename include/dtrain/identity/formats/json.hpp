#pragma once
/// @file
/// JSON reader for variables of a cluster: strict (RFC 8259), bounded in size and depth.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/text/json_tokens.hpp"
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

namespace detail {

/// Each function consumes the element that it is named after; it returns false if the text has another element.
class JsonReader : JsonTokens {
 public:
  using JsonTokens::JsonTokens;

  bool document(Json& value) { return text().size() <= longest_json && element(value, 0) && at_end(); }

 private:
  bool element(Json& value, int depth) {
    skip_space();
    const bool read = this->value(value, depth);
    skip_space();
    return read;
  }

  bool value(Json& value, int depth) {
    const char first = peek();
    if (first == '{' || first == '[') {
      value.type = first == '{' ? Json::Type::object : Json::Type::array;
      const auto member = [&] {
        return (first == '[' || key(value.keys.emplace_back())) && element(value.items.emplace_back(), depth + 1);
      };
      return depth < deepest_json && members(first, first == '{' ? '}' : ']', member) && all_differ(value.keys);
    }
    if (first == '"') {
      value.type = Json::Type::string;
      return string(value.text);
    }
    return named(value, "null", Json::Type::null) || named(value, "true", Json::Type::boolean) ||
           named(value, "false", Json::Type::boolean) || number(value);
  }

  /// Rejects a key that occurs twice: other readers may use its first value or its last.
  static bool all_differ(const std::vector<std::string>& keys) {
    return std::set<std::string_view>(keys.begin(), keys.end()).size() == keys.size();
  }

  bool number(Json& value) {
    std::string_view characters;
    value.type = Json::Type::number;
    const bool read = JsonTokens::number(characters);
    value.text = characters;
    return read;
  }

  bool named(Json& value, std::string_view name, Json::Type type) {
    value.type = type;
    value.text = name;
    return word(name);
  }
};

}  // namespace detail

/// nullopt if the text is not one JSON document, has a key twice in an object, or exceeds the bounds of size and depth.
inline std::optional<Json> parse_json(std::string_view text) {
  std::optional<Json> value(std::in_place);
  return detail::JsonReader(text).document(*value) ? std::move(value) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::identity
