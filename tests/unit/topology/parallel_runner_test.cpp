#include "unit/topology/prelude.hpp"

using dtrain::Cause;

namespace {

/// Until it is told to stop.
struct Endless {
  std::atomic<bool> stopped{false};
  std::string why;

  bool run() const {
    const Deadline soon = Deadline::after(std::chrono::seconds(60));
    while (!stopped.load() && !soon.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return !soon.passed();
  }
  void stop(const Cause& cause) {
    why = cause.text;
    stopped.store(true);
  }
};

bool throws() {
  throw std::runtime_error("enough");
}

}  // namespace

TEST_CASE("two pieces of work run at once, in two threads, and both must serve") {
  ParallelRunner runner;
  const auto never = [](const Cause&) { FAIL("nothing was thrown"); };
  for (int repeat = 0; repeat < 3; ++repeat) {
    Endless here;
    std::thread::id there;
    const bool serve = runner.run_both([&] { return here.run(); },
                                       [&] {
                                         there = std::this_thread::get_id();
                                         here.stopped.store(true);  // which the other one waits for
                                         return true;
                                       },
                                       never);
    CHECK(serve);
    CHECK(there != std::this_thread::get_id());
  }
  CHECK_FALSE(runner.run_both([] { return true; }, [] { return false; }, never));
  CHECK_FALSE(runner.run_both([] { return false; }, [] { return true; }, never));
}

TEST_CASE("what one of the two throws stops the other, and comes out once both have ended") {
  ParallelRunner runner;
  for (const bool here : {true, false}) {
    Endless other;
    const auto stop = [&](const Cause& cause) { other.stop(cause); };
    const auto endless = [&] { return other.run(); };
    const auto both = [&] {
      return here ? runner.run_both(throws, endless, stop) : runner.run_both(endless, throws, stop);
    };
    CHECK_THROWS_WITH_AS(both(), "enough", std::runtime_error);
    CHECK(other.why == "enough");
  }
}
