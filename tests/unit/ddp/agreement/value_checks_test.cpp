#include "dtrain/ddp/agreement/value_checks.hpp"

#include "support/captured_stderr.hpp"
#include "unit/ddp/prelude.hpp"

using dtrain::ddp::ValueChecks;

TEST_CASE("values are compared before each N-th step, and settings once before the next one") {
  ValueChecks none(0, true, true);
  CHECK_FALSE(none.is_due(0));
  CHECK_FALSE(none.is_due(1'000'000'000));
  none.compare_settings();
  REQUIRE(none.is_due(0));
  CHECK(none.take(0).settings);
  CHECK_FALSE(none.is_due(1));

  ValueChecks third(3, true, true);
  third.compare_settings();
  for (const std::uint64_t steps : {0u, 1u, 2u, 3u, 4u, 6u, 8u, 9u}) {
    CAPTURE(steps);
    const ValueChecks::Due due = third.is_due(steps) ? third.take(steps) : ValueChecks::Due{};
    CHECK(due.settings == (steps == 0));
    CHECK(due.values == (steps != 0 && steps % 3 == 0));
  }
}

TEST_CASE("a number of steps is read from the environment, and what is none is named") {
  for (const char* const text : {static_cast<const char*>(nullptr), ""}) {
    CHECK(value_checks(text, {}, true).every() == 0);
    CHECK(value_checks(text, {}, true).at_end());
  }
  CHECK(value_checks("100", {}, true).every() == 100);
  CHECK(value_checks("100", {}, true).at_end());
  CHECK(value_checks("0", {}, true).every() == 0);
  CHECK_FALSE(value_checks("0", {}, true).at_end());
  for (const char* const text : {"often", "-1", "3x", "99999999999999999999999"})
    CHECK_ERROR(value_checks(text, {}, true), Errc::usage, "DTRAIN_CHECK_VALUES=", text);
}

TEST_CASE("the variable does not end jobs whose values cannot be compared, and says so") {
  Parameter parameter{"p", tensor_view<float>(nullptr, {2}), tensor_view<float>(nullptr, {2})};
  parameter.value.device = {dtrain::DeviceKind::cuda, 0};
  support::CapturedStderr captured;
  for (const char* const text : {static_cast<const char*>(nullptr), "0"}) {
    CHECK_FALSE(value_checks(text, {&parameter, 1}, true).at_end());
    CHECK_FALSE(value_checks(text, {}, false).at_end());
  }
  CHECK(captured.text() == "");
  CHECK(value_checks("3", {&parameter, 1}, true).every() == 0);
  CHECK_CONTAINS(captured.text(), "DTRAIN_CHECK_VALUES=3 does not compare the values of this model: they are on a GPU");
  CHECK(value_checks("3", {}, false).every() == 0);
  CHECK_CONTAINS(captured.text(), "differ between two averages of a hook");
}
