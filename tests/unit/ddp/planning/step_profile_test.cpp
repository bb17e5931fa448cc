#include "dtrain/ddp/planning/plan_search.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

/// A record so many milliseconds after the clock's begin.
StepRecord at(int milliseconds, StepEvent event, std::uint32_t index = 0, std::uint64_t step = 7) {
  return {step, index, event, StepRecord::Clock::time_point(std::chrono::milliseconds(milliseconds))};
}

}  // namespace

TEST_CASE("a profile counts from the step's begin, and other steps' records do not count") {
  const std::vector<StepRecord> records{
      at(5, StepEvent::begun, 0, 6),   at(6, StepEvent::ready, 0, 6),   at(9, StepEvent::reduced, 0, 6),
      at(1000, StepEvent::begun),      at(1010, StepEvent::ready, 1),   at(1011, StepEvent::launched, 0),
      at(1012, StepEvent::started, 0), at(1020, StepEvent::ready, 0),   at(1017, StepEvent::reduced, 0),
      at(1030, StepEvent::waiting),    at(1031, StepEvent::started, 1), at(1034, StepEvent::reduced, 1),
      at(1035, StepEvent::finished)};
  const StepProfile profile = step_profile(records, 7, 2, 2);
  CHECK(profile.compute == doctest::Approx(0.030));
  CHECK(profile.ready_at[0] == doctest::Approx(0.020));
  CHECK(profile.ready_at[1] == doctest::Approx(0.010));
  CHECK(profile.bucket_seconds[0] == doctest::Approx(0.005));
  CHECK(profile.bucket_seconds[1] == doctest::Approx(0.003));
  CHECK(profile.overlaps);
}

TEST_CASE(
    "buckets that finish() runs do not overlap; what was not ready counts from finish(); lost records are zeros") {
  const std::vector<StepRecord> records{at(0, StepEvent::begun),       at(10, StepEvent::ready, 2),
                                        at(30, StepEvent::waiting),    at(31, StepEvent::started, 0),
                                        at(34, StepEvent::reduced, 0), at(34, StepEvent::started, 1),
                                        at(40, StepEvent::reduced, 9), at(40, StepEvent::ready, 9)};
  const StepProfile profile = step_profile(records, 7, 3, 3);
  CHECK_FALSE(profile.overlaps);
  CHECK(profile.ready_at[0] == doctest::Approx(0.030));
  CHECK(profile.ready_at[2] == doctest::Approx(0.010));
  CHECK(profile.bucket_seconds == std::vector<double>{profile.bucket_seconds[0], 0, 0});
  CHECK(profile.bucket_seconds[0] == doctest::Approx(0.003));
}
