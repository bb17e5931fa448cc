// JSON from anywhere: what is read, written again, reads as the same; it is never deeper or larger than the bounds say.

#include "dtrain/identity/formats/json.hpp"

#include "fuzz/fuzz.hpp"

namespace identity = dtrain::identity;
using identity::Json;

namespace {

std::string written(const std::string& text) {
  std::string quoted = "\"";
  for (const char byte : text) {
    char escaped[8];
    if (static_cast<unsigned char>(byte) < 0x20 || byte == '"' || byte == '\\') {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
      quoted += escaped;
    } else {
      quoted += byte;
    }
  }
  return quoted + '"';
}

std::string written(const Json& value) {
  if (value.is(Json::Type::string)) {
    return written(value.text);
  }
  if (!value.is(Json::Type::array) && !value.is(Json::Type::object)) {
    return value.text;
  }
  const bool object = value.is(Json::Type::object);
  std::string text;
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    text += (i == 0 ? "" : ",") + (object ? written(value.keys[i]) + ":" : "") + written(value.items[i]);
  }
  return (object ? "{" : "[") + text + (object ? "}" : "]");
}

bool same(const Json& a, const Json& b) {
  bool equal = a.type == b.type && a.text == b.text && a.keys == b.keys && a.items.size() == b.items.size();
  for (std::size_t i = 0; equal && i < a.items.size(); ++i) {
    equal = same(a.items[i], b.items[i]);
  }
  return equal;
}

void require_shape(const Json& value, int depth) {
  fuzz::require(depth <= identity::deepest_json, "no value is deeper than the bound");
  fuzz::require(value.keys.empty() || value.keys.size() == value.items.size(), "every key has a value");
  fuzz::require(value.is(Json::Type::array) || value.is(Json::Type::object) || value.items.empty(),
                "only arrays and objects have items");
  for (std::size_t i = 0; i < value.keys.size(); ++i) {
    fuzz::require(value.find(value.keys[i]) == &value.items[i], "a key finds its own value");
  }
  for (const Json& item : value.items) {
    require_shape(item, depth + 1);
  }
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  return {R"({"cluster": {"worker": ["h1:2222", "h2:2222"]}, "task": {"type": "worker", "index": "1"}})",
          R"([1, -0.5e+3, true, false, null, "\u00e9\ud83d\ude00\n", {"a": {"b": []}}])",
          R"({"a": 1, "a": 2})",
          "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
          "[01]",
          "\"\\ud800\""};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const std::optional<Json> value = identity::parse_json(text);
  if (!value) {
    return 0;
  }
  fuzz::require(size <= identity::longest_json, "nothing longer than the bound is read");
  require_shape(*value, 0);
  const std::string again = written(*value);
  if (again.size() <= identity::longest_json) {
    const std::optional<Json> reread = identity::parse_json(again);
    fuzz::require(reread && same(*value, *reread), "what was read reads as the same when written again");
    fuzz::require(!identity::parse_json(again + "x"), "nothing may follow a document");
  }
  return 0;
}
