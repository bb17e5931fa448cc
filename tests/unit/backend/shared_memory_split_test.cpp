#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::ColorAndKey;

TEST_CASE("ranks are ordered by key, then by rank, among those of their color") {
  const std::vector<ColorAndKey> choices{{0, 5}, {1, 0}, {0, -1}, {0, 5}, {1, 0}};
  CHECK(dtrain::backend::ranks_of_color(choices, 0) == std::vector<int>{2, 0, 3});
  CHECK(dtrain::backend::ranks_of_color(choices, 4) == std::vector<int>{1, 4});
}

TEST_CASE("what ranks say of a split is written and read without loss, and anything else is refused") {
  const std::vector<ColorAndKey> choices{{0, 5}, {2'147'483'647, -2'147'483'647}};
  const auto read = dtrain::from_bytes<ColorAndKey>(dtrain::to_bytes(choices[1]), "a choice");
  CHECK(read.color == choices[1].color);
  CHECK(read.key == choices[1].key);
  const std::string bytes = dtrain::to_bytes(choices[0]);
  for (const std::string& text : {std::string(), bytes.substr(1), bytes + "1", std::string("1 2 "), bytes + bytes})
    CHECK_THROWS_AS(dtrain::from_bytes<ColorAndKey>(text, "a choice"), dtrain::Error);
}

}  // namespace
