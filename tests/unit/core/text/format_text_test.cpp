#include "dtrain/core/text/format_text.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

using dtrain::Errc;
using dtrain::format_text;
using dtrain::throw_error;

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
