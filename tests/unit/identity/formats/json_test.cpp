#include "unit/identity/prelude.hpp"

TEST_CASE("JSON of every kind is read") {
  const auto value = parse_json(" {\"a\" : [1, -0.5e+3, true, false, null, \"x\"] ,\t\"b\":{}, \"\": []} \n");
  REQUIRE(value.has_value());
  CHECK(value->is(Json::Type::object));
  const Json* const list = value->find("a");
  REQUIRE(list != nullptr);
  REQUIRE(list->items.size() == 6);
  CHECK(list->items[0].text == "1");
  CHECK(list->items[1].text == "-0.5e+3");
  CHECK(list->items[2].is(Json::Type::boolean));
  CHECK(list->items[3].text == "false");
  CHECK(list->items[4].is(Json::Type::null));
  CHECK(list->items[5].text == "x");
  CHECK(value->find("b")->is(Json::Type::object));
  CHECK(value->find("") != nullptr);
  CHECK(value->find("c") == nullptr);
  CHECK(list->find("a") == nullptr);
}

TEST_CASE("escapes become the bytes they stand for") {
  CHECK(parse_json("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"")->text == "\"\\/\b\f\n\r\t");
  CHECK(parse_json("\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"")->text == "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(parse_json(std::string("\"\\u0000\""))->text == std::string(1, '\0'));
}

TEST_CASE("what is not JSON, or is it twice over, is not read") {
  for (const char* text : {"",
                           " ",
                           "{",
                           "}",
                           "[1,]",
                           "[,1]",
                           "{\"a\":1,}",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{a:1}",
                           "{'a':1}",
                           "[1 2]",
                           "[1]]",
                           "01",
                           "-",
                           "+1",
                           "1.",
                           ".5",
                           "1e",
                           "1e+",
                           "0x1",
                           "NaN",
                           "Infinity",
                           "nul",
                           "nulls",
                           "True",
                           "\"",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\u12g4\"",
                           "\"\\ud800\"",
                           "\"\\ud800x\"",
                           "\"\\ud800\\u0041\"",
                           "\"\\udc00\"",
                           "\"a\nb\"",
                           "[1] // x",
                           "/* x */ 1",
                           "{\"a\":1,\"a\":2}",
                           "{\"a\":1,\"\\u0061\":2}",
                           "1 1",
                           "\xef\xbb\xbf{}"}) {
    CAPTURE(text);
    CHECK(!parse_json(text).has_value());
  }
  CHECK(!parse_json(std::string("[1\0]", 4)).has_value());
}

TEST_CASE("depth and length are bounded") {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(parse_json(nested(dtrain::identity::deepest_json)).has_value());
  CHECK(!parse_json(nested(dtrain::identity::deepest_json + 1)).has_value());
  CHECK(!parse_json(std::string(1000000, '[')).has_value());
  const auto padded = [](std::size_t size) { return "1" + std::string(size - 1, ' '); };
  CHECK(parse_json(padded(dtrain::identity::longest_json)).has_value());
  CHECK(!parse_json(padded(dtrain::identity::longest_json + 1)).has_value());
}
