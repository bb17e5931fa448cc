#include "unit/core/prelude.hpp"

namespace {

unsigned line_of_throw = 0;

void break_a_precondition() {
  line_of_throw = __LINE__ + 1;
  throw dtrain::Error(dtrain::Errc::invalid_argument, "the caller did it");
}

TEST_CASE("an error's text is its sentence and nothing else") {
  try {
    break_a_precondition();
    FAIL("nothing was thrown");
  } catch (const std::system_error& error) {
    CHECK(std::string(error.what()) == "the caller did it");
    CHECK(error.code() == dtrain::Errc::invalid_argument);
    CHECK(std::string(error.code().category().name()) == "dtrain");
  }
}

TEST_CASE("an error knows the place that threw it") {
  try {
    break_a_precondition();
    FAIL("nothing was thrown");
  } catch (const dtrain::Error& error) {
    CHECK(error.where().line == line_of_throw);
    CHECK(std::string(error.where().file).ends_with("error_test.cpp"));
    CHECK(std::string(error.where().function) == "break_a_precondition");
  }
}

TEST_CASE("an error has a rank only once it was given one") {
  dtrain::Error error(dtrain::Errc::timeout, "too late");
  CHECK_FALSE(error.rank().has_value());
  CHECK(error.with_rank(3).rank() == 3);
}

TEST_CASE("a posix error says what was being done, what went wrong, and what to do") {
  const dtrain::Error bare = dtrain::posix_error(EADDRINUSE, "binding port 80");
  CHECK(std::string(bare.what()) == "binding port 80: Address already in use");
  CHECK(bare.code() == std::errc::address_in_use);
  const dtrain::Error helpful = dtrain::posix_error(EADDRINUSE, "binding port 80", "choose another port");
  CHECK(std::string(helpful.what()) == "binding port 80: Address already in use; choose another port");
}

TEST_CASE("errno_error reads the present errno") {
  errno = ENOENT;
  CHECK(dtrain::errno_error("opening a file").code() == std::errc::no_such_file_or_directory);
}

TEST_CASE("every code of dtrain's category has a text of its own") {
  const std::string unknown = dtrain::dtrain_category().message(0);
  CHECK(dtrain::dtrain_category().message(1000) == unknown);
  std::string previous = unknown;
  for (int code = static_cast<int>(dtrain::Errc::invalid_argument); code <= static_cast<int>(dtrain::Errc::peer_lost);
       ++code) {
    const std::string text = dtrain::dtrain_category().message(code);
    CAPTURE(code);
    CHECK(text != unknown);
    CHECK(text != previous);
    previous = text;
  }
}

TEST_CASE("CHECK_ERROR names the call, what a test expects of its error, and what it threw") {
  const auto says = [](Errc code) { return "'" + make_error_code(code).message() + "'"; };
  const dtrain::Error seen(Errc::timeout, "too late");
  const auto differences = [](const auto&... expected) { return support::differences("f()", expected...); };
  using Texts = std::vector<std::string>;
  CHECK(differences(std::optional(seen), Errc::timeout, "too", "late") == Texts{"", "", ""});
  CHECK(differences(std::optional(seen), Errc::timeout, "too", "early") ==
        Texts{"", "", "there is no 'early' in 'too late'"});
  CHECK(differences(std::optional(seen), Errc::usage, "too") ==
        Texts{"f() threw " + says(Errc::timeout) + ", instead of " + says(Errc::usage) + ": too late", ""});
  CHECK(differences(std::optional<dtrain::Error>(), Errc::usage, "too") ==
        Texts{"f() threw nothing, instead of " + says(Errc::usage), "there is no 'too' in ''"});
}

}  // namespace
