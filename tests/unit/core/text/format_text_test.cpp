#include "unit/core/prelude.hpp"

TEST_CASE("values stand in the places of the pattern, in their order") {
  const std::string name = "fc1";
  CHECK(format_text("{} of {}: {} {}", {name, "model", std::string_view("bias!", 4), 7}) == "fc1 of model: bias 7");
  CHECK(format_text("{}", {"{}"}) == "{}");
  CHECK(format_text("{ } {{}}", {""}) == "{ } {}");
}

TEST_CASE("whole numbers are written in full") {
  CHECK(format_text("{}", {std::numeric_limits<std::int64_t>::min()}) == "-9223372036854775808");
  CHECK(format_text("{}", {std::numeric_limits<std::uint64_t>::max()}) == "18446744073709551615");
  CHECK(format_text("{} {} {}", {std::int8_t{-1}, std::uint8_t{255}, -2}) == "-1 255 -2");
}

TEST_CASE("throw_error throws the code, the sentence and the place of the call") {
  const auto line = static_cast<unsigned>(__LINE__ + 2);
  try {
    throw_error(Errc::limit, "{} of {} bytes", {5, std::string("4")});
  } catch (const dtrain::Error& error) {
    CHECK(error.code() == make_error_code(Errc::limit));
    CHECK(error.what() == std::string_view("5 of 4 bytes"));
    CHECK(error.where().line == line);
  }
  CHECK_THROWS_WITH_AS(throw_error(Errc::usage, "no values, and {} stays"), "no values, and {} stays", dtrain::Error);
}

TEST_CASE("constant characters are values, not a place in the source") {
  CHECK_THROWS_WITH_AS(throw_error(Errc::usage, "{}", {"one"}), "one", dtrain::Error);
  CHECK_THROWS_WITH_AS(throw_error(Errc::usage, "{} {}", {"one", "two"}), "one two", dtrain::Error);
  CHECK_THROWS_WITH_AS(throw_error(Errc::usage, "{} {} {}", {"one", "two", 3U}), "one two 3", dtrain::Error);
}

TEST_CASE("throw_errno and throw_posix throw the error of the system, with its remedy and the place of the call") {
  const auto line = static_cast<unsigned>(__LINE__ + 3);
  try {
    errno = ENOENT;
    throw_errno("opening {}", {"a.txt"}, "make it");
  } catch (const dtrain::Error& error) {
    CHECK(error.code() == std::error_code(ENOENT, std::generic_category()));
    CHECK(error.what() == std::string_view("opening a.txt: No such file or directory; make it"));
    CHECK(error.where().line == line);
  }
  errno = EACCES;
  CHECK_THROWS_WITH_AS(throw_errno("opening {}"), "opening {}: Permission denied", dtrain::Error);
  CHECK_THROWS_WITH_AS(throw_posix(EEXIST, "making {}", {std::string("b")}), "making b: File exists", dtrain::Error);
  CHECK_THROWS_WITH_AS(throw_posix(EPIPE, "writing"), "writing: Broken pipe", dtrain::Error);
}
