#include "unit/rendezvous/formation/model_job.hpp"
#include "unit/rendezvous/prelude.hpp"

using formation_model::ModelJob;

namespace {

/// How many schedules a run tries: DTRAIN_TEST_SCHEDULES, for longer runs by hand.
std::uint64_t schedules() {
  const char* const wanted = std::getenv("DTRAIN_TEST_SCHEDULES");
  return wanted != nullptr ? std::stoull(wanted) : support::is_sanitized ? 50000 : 1000000;
}

}  // namespace

TEST_CASE("no schedule of losses, stops and joins loses, repeats or forks a committed step") {
  std::array<std::uint64_t, 5> outcomes{};
  std::uint64_t attempts = 0;
  std::uint64_t behind = 0;
  std::uint64_t resizes = 0;
  std::uint64_t bars = 0;
  for (std::uint64_t seed = 1; seed <= schedules(); ++seed) {
    ModelJob job(seed);
    const ModelJob::Outcome outcome = job.run();
    ++outcomes[static_cast<std::size_t>(outcome)];
    attempts += static_cast<std::uint64_t>(job.attempts());
    behind += static_cast<std::uint64_t>(job.formed_with_survivor_behind());
    resizes += static_cast<std::uint64_t>(job.resizes());
    bars += static_cast<std::uint64_t>(job.bars());
    if (outcome == ModelJob::Outcome::wrong) {
      FAIL("seed " << seed << ": " << std::string(job.problem()));
    }
  }
  MESSAGE(schedules() << " schedules: " << outcomes[1] << " finished, " << outcomes[2] << " ended, " << outcomes[3]
                      << " without a living worker; " << attempts << " attempts, " << behind
                      << " receivers with a state of their own, " << resizes << " ended by newcomers, " << bars
                      << " told of a bar");
  // Each kind of schedule that the rules are about occurs.
  CHECK(outcomes[1] > schedules() / 2);
  CHECK(attempts > schedules());
  CHECK(behind > schedules() / 100);
  CHECK(resizes > schedules() / 400);
  CHECK(bars > schedules() / 10000);
}
