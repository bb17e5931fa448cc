#include "dtrain/run.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/policy.hpp"

namespace {

using Alone = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

template <class Body>
int run_alone(Body body) {
  REQUIRE(::setenv("DTRAIN_LAUNCHER", "none", 1) == 0);
  std::string name = "program";
  char* arguments[] = {name.data(), nullptr};
  return dtrain::run<Alone>(1, arguments, body);
}

}  // namespace

TEST_CASE("the exit code is the body's, and never one that the system makes a success of") {
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return 0; }) == 0);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return 7; }) == 7);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return -1; }) == -1);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return 256; }) == dtrain::exit_code_exception);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return -512; }) == dtrain::exit_code_exception);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return 1LL << 32; }) == dtrain::exit_code_exception);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) {}) == 0);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { throw std::runtime_error("on purpose"); }) ==
        dtrain::exit_code_exception);
}
