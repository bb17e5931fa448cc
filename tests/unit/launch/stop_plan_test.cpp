#include "dtrain/launch/stop_plan.hpp"

#include <doctest/doctest.h>

#include <chrono>

using dtrain::launch::StopPlan;
using Action = StopPlan::Action;
using std::chrono::milliseconds;

namespace {

const StopPlan::Clock::time_point start{};
constexpr milliseconds settle = StopPlan::settle;

}  // namespace

TEST_CASE("after a failure the others settle, get SIGTERM, then SIGKILL, each once") {
  StopPlan plan;
  CHECK(!plan.next());
  plan.failed(start);
  CHECK(plan.due(start) == Action::nothing);
  CHECK(plan.next() == start + settle);
  CHECK(plan.due(start + settle) == Action::terminate);
  CHECK(plan.has_acted());
  CHECK(plan.due(start + settle + milliseconds(1)) == Action::nothing);
  CHECK(plan.next() == start + settle + milliseconds(1000));
  CHECK(plan.due(start + settle + milliseconds(1000)) == Action::kill);
  CHECK(plan.due(start + settle + milliseconds(1001)) == Action::nothing);
  CHECK(!plan.next());
}

TEST_CASE("processes that compute on devices have longer to end by themselves, and to die") {
  StopPlan plan(StopPlan::default_stop_grace, dtrain::launch::pace_with_devices);
  plan.failed(start);
  CHECK(plan.due(start + milliseconds(4999)) == Action::nothing);
  CHECK(plan.due(start + milliseconds(5000)) == Action::terminate);
  CHECK(plan.due(start + milliseconds(6000)) == Action::kill);
  CHECK(plan.dying() == milliseconds(60'000));
  CHECK(StopPlan().dying() == milliseconds(300));
}

TEST_CASE("a later failure does not start the clock again") {
  StopPlan plan;
  plan.failed(start);
  plan.failed(start + milliseconds(200));
  CHECK(plan.next() == start + settle);
}

TEST_CASE("after a forwarded signal workers have a long grace, also when one fails meanwhile") {
  StopPlan plan;
  plan.stop_asked(start);
  plan.failed(start + milliseconds(5));
  CHECK(plan.next() == start + milliseconds(30000));
  CHECK(plan.due(start + milliseconds(29999)) == Action::nothing);
  CHECK(plan.due(start + milliseconds(30000)) == Action::kill);
}

TEST_CASE("a second signal shortens the grace to a second, a third does not lengthen it") {
  StopPlan plan;
  plan.stop_asked(start);
  plan.stop_asked(start + milliseconds(500));
  CHECK(plan.next() == start + milliseconds(1500));
  plan.stop_asked(start + milliseconds(900));
  CHECK(plan.next() == start + milliseconds(1500));
  CHECK(plan.due(start + milliseconds(1500)) == Action::kill);
}

TEST_CASE("a signal after a failure does not put the end off") {
  StopPlan plan;
  plan.failed(start);
  plan.stop_asked(start + milliseconds(100));
  CHECK(plan.due(start + settle) == Action::terminate);
  CHECK(plan.next() == start + settle + milliseconds(1000));
}

TEST_CASE("the grace after a forwarded signal is what it was made with") {
  StopPlan plan(std::chrono::minutes(5));
  plan.stop_asked(start);
  CHECK(plan.next() == start + std::chrono::minutes(5));
  plan.stop_asked(start + milliseconds(1));
  CHECK(plan.next() == start + milliseconds(1001));
}
