#include "support/german_locale.hpp"
#include "support/skip.hpp"
#include "unit/core/prelude.hpp"

namespace {

std::string printed(const char* format, int digits, double number) {
  char text[400];
  std::snprintf(text, sizeof text, format, digits, number);
  return text;
}

}  // namespace

TEST_CASE("the text of a number is the shortest that means it") {
  CHECK(number_text(0.01) == "0.01");
  CHECK(number_text(20.0) == "20");
  CHECK(number_text(1e-10) == "1e-10");
  CHECK(number_text(-0.1F) == "-0.1");
  CHECK(number_text(65536.0F) == "65536");
  CHECK(number_text(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(format_text("{} and {}", {0.5, 0.1F}) == "0.5 and 0.1");
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const double number = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 100);
    CHECK(std::strtod(number_text(number).c_str(), nullptr) == number);
  }
}

TEST_CASE("digits and decimals are those of printf") {
  std::mt19937_64 random(2);
  for (int i = 0; i < 1000; ++i) {
    const double number = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 100);
    const int digits = 1 + static_cast<int>(random() % 6);
    CHECK(number_text(number, digits) == printed("%.*g", digits, number));
    CHECK(fixed_text(number, digits) == printed("%.*f", digits, number));
  }
  CHECK(fixed_text(std::numeric_limits<double>::max(), 1) == printed("%.*f", 1, std::numeric_limits<double>::max()));
  CHECK(duration_text(std::chrono::milliseconds(1250)) == "1.2 s");
}

TEST_CASE("no number follows the locale") {
  const support::GermanLocale locale;
  if (!locale.problem.empty()) return dtrain_test::skip(locale.problem);
  const support::ScopedLocale scope(locale);
  REQUIRE(scope.is_set);
  REQUIRE(printed("%.*f", 1, 0.5) == "0,5");
  CHECK(number_text(0.5) == "0.5");
  CHECK(number_text(0.25, 1) == "0.2");
  CHECK(fixed_text(0.5, 1) == "0.5");
  CHECK(format_text("{}", {0.5}) == "0.5");
  CHECK(duration_text(std::chrono::milliseconds(500)) == "0.5 s");
}
