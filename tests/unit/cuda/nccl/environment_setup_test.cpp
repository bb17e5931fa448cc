#include "dtrain/backend/nccl.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

using dtrain::backend::nccl::prepare_environment;

TEST_CASE("NCCL launches in the order of the program's calls, unless the user says otherwise") {
  ::unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  prepare_environment();
  CHECK(std::string(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) == "1");
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
  prepare_environment();
  CHECK(std::string(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) == "0");
  ::unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
}

TEST_CASE("a variable that makes NCCL block is warned of") {
  using dtrain::backend::nccl::warning_about;
  const char* const warning = warning_about({{"NCCL_COMM_BLOCKING", "1"}});
  REQUIRE(warning != nullptr);
  CHECK(std::string(warning).find("NCCL_COMM_BLOCKING=1 makes NCCL block in its calls, where no timeout ends it") == 0);
  CHECK(warning_about({{"NCCL_COMM_BLOCKING", "0"}}) == nullptr);
  CHECK(warning_about({}) == nullptr);
}
