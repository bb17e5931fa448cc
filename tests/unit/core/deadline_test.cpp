#include "dtrain/core/deadline.hpp"
#include "unit/core/prelude.hpp"

namespace {

using std::chrono::hours;
using std::chrono::seconds;

TEST_CASE("a deadline in the past has passed and leaves nothing, never less") {
  const Deadline past = Deadline::after(-hours(1));
  CHECK(past.passed());
  CHECK(past.remaining() == Deadline::Clock::duration::zero());
}

TEST_CASE("a deadline in the future has not passed and leaves at most what was given") {
  const Deadline future = Deadline::after(hours(1));
  CHECK_FALSE(future.passed());
  CHECK(future.remaining() <= hours(1));
  CHECK(future.remaining() > seconds(3000));
}

TEST_CASE("a timeout beyond what the clock can tell has not passed") {
  CHECK_FALSE(Deadline::after(Deadline::Clock::duration::max()).passed());
  CHECK(Deadline::after(Deadline::Clock::duration::max()).remaining() > hours(1));
  CHECK(Deadline::after(Deadline::Clock::duration::min()).passed());
}

TEST_CASE("an unbounded deadline never passes, nor does its grace") {
  constexpr Deadline unbounded = Deadline::unbounded("this test does not wait");
  CHECK_FALSE(unbounded.passed());
  CHECK(unbounded.remaining() > hours(24 * 365 * 100));
  CHECK(dtrain::with_grace(unbounded).instant() == unbounded.instant());
}

TEST_CASE("the earlier of two deadlines is the one that comes first, in either order") {
  const Deadline first = Deadline::at(Deadline::Clock::time_point(seconds(1)));
  const Deadline second = Deadline::at(Deadline::Clock::time_point(seconds(2)));
  CHECK(earlier(first, second).instant() == first.instant());
  CHECK(earlier(second, first).instant() == first.instant());
}

}  // namespace
