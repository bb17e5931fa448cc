#include "unit/ddp/prelude.hpp"

namespace {

ParameterNames named(const std::vector<std::string>& names) {
  std::vector<dtrain::Parameter> parameters;
  for (const std::string& name : names)
    parameters.push_back({name, {}, {}});
  return ParameterNames(parameters);
}

}  // namespace

TEST_CASE("a new step forgets the entries of the one before") {
  const ParameterNames names = named({"a", "b"});
  ReadyGradients ready(names);
  for (int step = 1; step <= 3; ++step) {
    ready.begin_step();
    CHECK_CONTAINS(ready.missing(), "parameter 0 'a', parameter 1 'b'");
    ready.mark_ready(0);
    ready.mark_ready(1);
    CHECK(ready.missing().empty());
    CHECK(ready.end_step());
    CHECK_FALSE(ready.end_step());
  }
  CHECK(ready.step() == 3);
}

TEST_CASE("the observed order is that of the announcements, with what was not announced at the end, last first") {
  const ParameterNames names = named({"a", "b", "c", "d", "e"});
  ReadyGradients ready(names);
  ready.record_order(true);
  ready.begin_step();
  for (const std::size_t parameter : {3u, 0u, 4u})
    ready.mark_ready(parameter);
  CHECK(ready.observed_order() == std::vector<std::size_t>{3, 0, 4, 2, 1});
  CHECK(ready.was_ready(3));
  CHECK_FALSE(ready.was_ready(2));
  ready.record_order(true);
  CHECK(ready.observed_order() == std::vector<std::size_t>{4, 3, 2, 1, 0});
}

TEST_CASE("five missing parameters are named without a rest, the sixth is counted") {
  const ParameterNames five_names = named({"a", "b", "c", "d", "e"});
  ReadyGradients five(five_names);
  five.begin_step();
  CHECK_CONTAINS(five.missing(), "parameter 4 'e';");
  const ParameterNames six_names = named({"a", "b", "c", "d", "e", "f"});
  ReadyGradients six(six_names);
  six.begin_step();
  CHECK_CONTAINS(six.missing(), "parameter 4 'e' and 1 more;");
  CHECK(six.missing().find("'f'") == std::string::npos);
}
