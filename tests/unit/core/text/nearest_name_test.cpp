#include "dtrain/core/text/nearest_name.hpp"
#include "unit/core/prelude.hpp"

using dtrain::edit_distance;
using dtrain::nearest_name;

namespace {

std::string_view nearest(std::string_view given) {
  constexpr std::array<std::string_view, 4> known{"--wrap", "--wrap-rank", "--log-dir", "--lag-dirs"};
  return nearest_name(given, known, 2);
}

}  // namespace

TEST_CASE("the edit distance counts insertions, deletions and replacements") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("ab", "ba") == 2);
}

TEST_CASE("the nearest name is the one with the fewest edits, two at most") {
  CHECK(nearest("--log-dir") == "--log-dir");
  CHECK(nearest("--lag-dir") == "--log-dir");  // one edit from both: the first
  CHECK(nearest("--lagg-dirs") == "--lag-dirs");
  CHECK(nearest("--wrap_rnk") == "--wrap-rank");
  CHECK(nearest("--wrap-rank-of") == "");
  CHECK(nearest("--" + std::string(100'000, 'w')) == "");
  CHECK(nearest("--") == "");
  CHECK(nearest("") == "");
}

TEST_CASE("a name of fewer than six letters is nearest with one edit only, and not of its first letter") {
  CHECK(nearest("--wrp") == "--wrap");
  CHECK(nearest("--wraps") == "--wrap");
  CHECK(nearest("--wp") == "");
  CHECK(nearest("--trap") == "");
}
