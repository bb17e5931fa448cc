#include "unit/launch/prelude.hpp"

namespace {

/// The lines of `text` fed in the given pieces.
std::vector<std::string> split(const std::vector<std::string_view>& pieces, std::size_t max_line_bytes = 64) {
  LineSplitter splitter(max_line_bytes);
  std::vector<std::string> lines;
  const auto keep = [&lines](std::string_view line) { lines.emplace_back(line); };
  for (const std::string_view piece : pieces) {
    splitter.feed(piece, keep);
  }
  splitter.finish(keep);
  return lines;
}

}  // namespace

TEST_CASE("the lines are the same for every way to cut the bytes in three") {
  const std::string text = "one\n\ntwo and more\n0123456789abcdef\n\rthree\r\nlast";
  const std::vector<std::string> expected{"one", "", "two and more", "0123456789abcdef", "\rthree\r", "last"};
  const std::string_view view = text;
  for (std::size_t a = 0; a <= text.size(); ++a) {
    for (std::size_t b = a; b <= text.size(); ++b) {
      CHECK(split({view.substr(0, a), view.substr(a, b - a), view.substr(b)}, 16) == expected);
    }
  }
}

TEST_CASE("a line beyond the bound becomes several, however it was cut") {
  const std::string text = "0123456789\nabcdefgh\n";
  const std::vector<std::string> expected{"0123", "4567", "89", "abcd", "efgh"};
  const std::string_view view = text;
  for (std::size_t a = 0; a <= text.size(); ++a) {
    CHECK(split({view.substr(0, a), view.substr(a)}, 4) == expected);
  }
}

TEST_CASE("what is not a whole line yet is there to be shown") {
  LineSplitter splitter;
  splitter.feed("a\nb", [](std::string_view) {});
  CHECK(splitter.partial() == "b");
  splitter.finish([](std::string_view) {});
  CHECK(splitter.partial() == "");
}

TEST_CASE("of a line that was redrawn, the last drawing is visible") {
  CHECK(visible_part("plain") == "plain");
  CHECK(visible_part("\r10%\r20%") == "20%");
  CHECK(visible_part("10%\r20%\r") == "20%");
  CHECK(visible_part("windows\r") == "windows");
  CHECK(visible_part("\r\r") == "");
}

TEST_CASE("a tail keeps the last lines, each bounded") {
  Tail tail;
  for (int i = 0; i < 100; ++i) {
    tail.push(std::to_string(i));
  }
  CHECK(tail.lines().size() == Tail::max_lines);
  CHECK(tail.lines().back() == "99");
  tail.push(std::string(100000, 'x'));
  CHECK(tail.lines().back().size() == Tail::max_line_bytes + 3);
}
