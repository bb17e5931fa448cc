// ctest: TIMEOUT 120
// A job whose ranks have different locales: they agree, and no number has a comma for its decimal point.

#include "integration/prelude.hpp"
#include "support/german_locale.hpp"

TEST_CASE("a rank with a German locale trains with ranks that have none") {
  const support::GermanLocale locale;
  if (!locale.problem.empty()) return dtrain_test::skip(locale.problem);
  const support::Result result =
      support::run(DTRAIN_TEST_PROGRAMS_DIR "/locale_probe", {"--nproc-per-node=2"},
                   {{"LOCPATH", locale.folder.path}, {"LC_ALL", locale.name}, {"DTRAIN_TIMEOUT_SECONDS", "20.5"}});
  INFO(result.output);
  INFO(result.error);
  support::check_printed(result, {"[0] rank 0 has the decimal point ,\n", "[1] rank 1 has the decimal point .\n"});
  bool has_comma = false;
  for (std::size_t at = 1; at + 1 < result.output.size(); ++at) {
    const auto is_digit = [&](std::size_t i) { return result.output[i] >= '0' && result.output[i] <= '9'; };
    has_comma = has_comma || (result.output[at] == ',' && is_digit(at - 1) && is_digit(at + 1));
  }
  CHECK(!has_comma);
  CHECK_CONTAINS(result.output, "a step of 3: ");
}
