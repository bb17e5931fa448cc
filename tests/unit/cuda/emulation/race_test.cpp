#include "unit/cuda/prelude.hpp"

namespace {

constexpr const char* race_variable = "DTRAIN_TEST_EMULATED_RACE";

/// This program with the first case alone, whose nth wait is left out. No name has a comma: doctest splits there.
support::Result run_race(int ignored_wait) {
  return support::run("/proc/self/exe", {"--no-skip", "--test-case=two emulated streams of which one may wait"},
                      {{race_variable, std::to_string(ignored_wait)}});
}

}  // namespace

TEST_CASE("two emulated streams of which one may wait" * doctest::skip(std::getenv(race_variable) == nullptr)) {
  emulation::ignore_wait(std::atoi(std::getenv(race_variable)));
  TwoStreams streams;
  static_cast<void>(support::written_and_read(streams));
}

TEST_CASE("ThreadSanitizer reports a wait that is missing between emulated streams, and nothing else") {
  if (!DTRAIN_THREAD_SANITIZER) return dtrain_test::skip("only ThreadSanitizer sees races");
  CHECK(run_race(0).exit_code == 0);
  const support::Result missing = run_race(1);
  CHECK(missing.exit_code != 0);
  CHECK(missing.error.find("ThreadSanitizer: data race") != std::string::npos);
}
