#include "dtrain/launch/shutdown_schedule.hpp"
#include "unit/launch/prelude.hpp"

using Action = ShutdownSchedule::Action;

namespace {

const ShutdownSchedule::Clock::time_point start{};
constexpr milliseconds exit_grace = ShutdownSchedule::exit_grace;

}  // namespace

TEST_CASE("after a failure the others have a grace period, get SIGTERM, then SIGKILL, each once") {
  ShutdownSchedule schedule;
  CHECK(!schedule.next());
  schedule.on_failure(start);
  CHECK(schedule.due(start) == Action::nothing);
  CHECK(schedule.next() == start + exit_grace);
  CHECK(schedule.due(start + exit_grace) == Action::terminate);
  CHECK(schedule.has_acted());
  CHECK(schedule.due(start + exit_grace + milliseconds(1)) == Action::nothing);
  CHECK(schedule.next() == start + exit_grace + milliseconds(1000));
  CHECK(schedule.due(start + exit_grace + milliseconds(1000)) == Action::kill);
  CHECK(schedule.due(start + exit_grace + milliseconds(1001)) == Action::nothing);
  CHECK(!schedule.next());
}

TEST_CASE("processes that compute on devices have longer to end by themselves, and to die") {
  ShutdownSchedule schedule(ShutdownSchedule::default_stop_grace, dtrain::launch::device_shutdown_timeouts);
  schedule.on_failure(start);
  CHECK(schedule.due(start + milliseconds(4999)) == Action::nothing);
  CHECK(schedule.due(start + milliseconds(5000)) == Action::terminate);
  CHECK(schedule.due(start + milliseconds(6000)) == Action::kill);
  CHECK(schedule.kill_timeout() == milliseconds(60'000));
  CHECK(ShutdownSchedule().kill_timeout() == milliseconds(300));
}

TEST_CASE("a later failure does not start the clock again") {
  ShutdownSchedule schedule;
  schedule.on_failure(start);
  schedule.on_failure(start + milliseconds(200));
  CHECK(schedule.next() == start + exit_grace);
}

TEST_CASE("after a forwarded signal workers have a long grace, also when one fails meanwhile") {
  ShutdownSchedule schedule;
  schedule.on_stop_requested(start);
  schedule.on_failure(start + milliseconds(5));
  CHECK(schedule.next() == start + milliseconds(30000));
  CHECK(schedule.due(start + milliseconds(29999)) == Action::nothing);
  CHECK(schedule.due(start + milliseconds(30000)) == Action::kill);
}

TEST_CASE("a second signal shortens the grace to a second, a third does not lengthen it") {
  ShutdownSchedule schedule;
  schedule.on_stop_requested(start);
  schedule.on_stop_requested(start + milliseconds(500));
  CHECK(schedule.next() == start + milliseconds(1500));
  schedule.on_stop_requested(start + milliseconds(900));
  CHECK(schedule.next() == start + milliseconds(1500));
  CHECK(schedule.due(start + milliseconds(1500)) == Action::kill);
}

TEST_CASE("a signal after a failure does not put the end off") {
  ShutdownSchedule schedule;
  schedule.on_failure(start);
  schedule.on_stop_requested(start + milliseconds(100));
  CHECK(schedule.due(start + exit_grace) == Action::terminate);
  CHECK(schedule.next() == start + exit_grace + milliseconds(1000));
}

TEST_CASE("the grace after a forwarded signal is what it was made with") {
  ShutdownSchedule schedule(std::chrono::minutes(5));
  schedule.on_stop_requested(start);
  CHECK(schedule.next() == start + std::chrono::minutes(5));
  schedule.on_stop_requested(start + milliseconds(1));
  CHECK(schedule.next() == start + milliseconds(1001));
}
