#include "unit/identity/prelude.hpp"

TEST_CASE("a snapshot holds the variables of the process as they were") {
  REQUIRE(::setenv("DTRAIN_ENVIRONMENT_TEST", "a=b", 1) == 0);
  const dtrain::identity::Environment environment = dtrain::identity::snapshot_environment();
  REQUIRE(::unsetenv("DTRAIN_ENVIRONMENT_TEST") == 0);
  const auto found = environment.find("DTRAIN_ENVIRONMENT_TEST");
  REQUIRE(found != environment.end());
  CHECK(found->second == "a=b");
}
