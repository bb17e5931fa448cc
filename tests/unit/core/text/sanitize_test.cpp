#include "dtrain/core/text/sanitize.hpp"
#include "unit/core/prelude.hpp"

TEST_CASE("what a terminal shows as itself stays as it is") {
  for (const std::string text : {"", "rank 1 on host gpu-a: 50 %", "\\x1b is no escape here", "gr\xc3\xbc\xc3\x9f dich",
                                 "\xe2\x82\xac \xf0\x9f\x9a\x80 \xe6\xbc\xa2", "\xc2\xa0"}) {
    CHECK(sanitize(text) == text);
  }
}

TEST_CASE("control characters are written out, so that a text can neither move the cursor nor begin a line") {
  CHECK(sanitize("a\x1b[2J\x1b]0;title\x07z") == "a\\x1b[2J\\x1b]0;title\\x07z");
  CHECK(sanitize("one\ntwo\r\tthree\b\x7f") == "one\\ntwo\\r\\tthree\\x08\\x7f");
  CHECK(sanitize(std::string("\0x", 2)) == "\\x00x");
  CHECK(sanitize("\xc2\x9b"
                 "2J") ==
        "\\xc2\\x9b"
        "2J");                                                         // the one-character form of ESC [
  CHECK(sanitize("\xc2\x85") == "\\xc2\\x85");                         // the next line
  CHECK(sanitize("\xe2\x80\xaegnp.exe") == "\\xe2\\x80\\xaegnp.exe");  // right to left from here
  CHECK(sanitize("\xe2\x80\xa8") == "\\xe2\\x80\\xa8");                // the line separator
}

TEST_CASE("what is no UTF-8 is written out byte by byte") {
  CHECK(sanitize("\x9b"
                 "2J") ==
        "\\x9b"
        "2J");                                  // a control character of Latin-1
  CHECK(sanitize("\xc0\x9b") == "\\xc0\\x9b");  // an overlong ESC
  CHECK(sanitize("\xe0\x80\x9b") == "\\xe0\\x80\\x9b");
  CHECK(sanitize("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(sanitize("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(sanitize("\xff") == "\\xff");
  CHECK(sanitize("a\xe2\x82") == "a\\xe2\\x82");  // cut inside a character
  CHECK(sanitize("\xc3(") == "\\xc3(");
}

TEST_CASE("any bytes become a text without control characters, which is then left alone") {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 12, '\0');
    for (char& each : text)
      each = static_cast<char>(random() % 3 == 0 ? random() % 32 : random() % 256);
    const std::string shown = sanitize(text);
    for (const char each : shown) {
      const auto byte = static_cast<unsigned char>(each);
      REQUIRE((byte >= 0x20 && byte != 0x7f));
    }
    REQUIRE(sanitize(shown) == shown);
    REQUIRE(shown.size() <= 4 * text.size());
  }
}

TEST_CASE("a text that is too long is cut between characters") {
  CHECK(truncate_utf8("abc", 3) == "abc");
  CHECK(truncate_utf8("abc", 2) == "ab");
  CHECK(truncate_utf8("a\xc3\xa9", 2) == "a");
  CHECK(truncate_utf8("a\xc3\xa9", 3) == "a\xc3\xa9");
}

TEST_CASE("a sentence has the beginning of a text, printable, in quotes") {
  CHECK(excerpt("abc", 3) == "abc");
  CHECK(excerpt("abcd", 3) == "abc...");
  CHECK(excerpt("\n\n\n\n", 5) == "\\n\\n\\");  // no longer where its bytes are written out
  CHECK(in_quotes("a\nb") == "'a\\nb'");
  CHECK(in_quotes(std::string(129, 'x')) == "'" + std::string(128, 'x') + "...'");
}
