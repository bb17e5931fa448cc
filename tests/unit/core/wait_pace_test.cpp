#include "dtrain/core/wait_pace.hpp"

#include <chrono>
#include <thread>

#include "unit/core/prelude.hpp"

using dtrain::HostLoad;
using dtrain::WaitAction;
using dtrain::WaitLimits;
using dtrain::WaitPace;

namespace {

/// The turns of a wait until it sleeps, and how long they took; `at_yield` is what the caller does in a yield.
struct Turns {
  int spins = 0;
  int yields = 0;
  std::chrono::nanoseconds yielded{};
};

template <class Yield>
Turns turns_of(WaitPace& pace, Yield at_yield) {
  Turns turns;
  std::chrono::steady_clock::time_point began;
  for (;;) {
    const WaitAction action = pace.next();
    if (action == WaitAction::sleep) {
      turns.yielded = std::chrono::steady_clock::now() - began;
      return turns;
    }
    if (action == WaitAction::spin) {
      CHECK(turns.yields == 0);
      ++turns.spins;
    } else {
      if (turns.yields++ == 0) began = std::chrono::steady_clock::now();
      at_yield();
    }
  }
}

const auto nothing = [] {};

}  // namespace

TEST_CASE("where cores suffice a wait pauses 200 times and yields for a time, not a number of turns") {
  for (const bool has_quota : {false, true}) {
    WaitPace pace(WaitLimits{.cores_suffice = true, .has_quota = has_quota});
    // The turns end earlier where this machine runs other work: at the least is what a quota leaves.
    std::chrono::nanoseconds longest{};
    for (int i = 0; i < 50; ++i) {
      pace.reset();
      const Turns turns = turns_of(pace, nothing);
      CHECK(turns.spins == 200);
      CHECK(turns.yields >= 1);
      longest = std::max(longest, turns.yielded);
      if (!has_quota && longest >= std::chrono::microseconds(300)) break;
    }
    CHECK(longest >= std::chrono::microseconds(19));
  }
}

TEST_CASE("where ranks outnumber cores a wait pauses 5 times and yields 50 times") {
  WaitPace pace(WaitLimits{.cores_suffice = false, .has_quota = false});
  for (int i = 0; i < 3; ++i) {
    pace.reset();
    const Turns turns = turns_of(pace, nothing);
    CHECK(turns.spins == 5);
    CHECK(turns.yields == 50);
  }
}

TEST_CASE("a yield that took long ends the yields: another thread wanted the core. The caller's own time does not") {
  WaitPace pace(WaitLimits{.cores_suffice = false, .has_quota = false});
  CHECK(turns_of(pace, [] { std::this_thread::sleep_for(std::chrono::microseconds(40)); }).yields == 50);
  // A busy thread on this thread's core takes it at each yield, for longer than 30 us.
  const dtrain::Deadline deadline = dtrain::Deadline::after(std::chrono::seconds(60));
  std::atomic<bool> ends{false};
  std::vector<std::thread> busy;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
    busy.emplace_back([&] {
      while (!ends.load()) {
      }
    });
  int fewest = 50;
  while (fewest == 50 && !deadline.passed()) {
    pace.reset();
    fewest = std::min(fewest, turns_of(pace, [&] { pace.yield(); }).yields);
  }
  CHECK(fewest < 50);
  ends = true;
  for (std::thread& thread : busy)
    thread.join();
}

TEST_CASE("a wait that need not pause yields at once, and one that has moved begins again") {
  WaitPace pace(WaitLimits{.cores_suffice = true, .has_quota = false, .pauses = 100});
  pace.skip_spins();
  CHECK(pace.next() == WaitAction::yield);
  pace.reset();
  CHECK(turns_of(pace, nothing).spins == 100);
  pace.skip_spins();
  CHECK(pace.next() == WaitAction::sleep);  // the yields are over, and nothing has moved
}

TEST_CASE("the running threads are read from the text of /proc/loadavg, and from no other") {
  CHECK(HostLoad::running_threads("0.20 0.18 0.12 1/80 11206\n") == 1);
  CHECK(HostLoad::running_threads("190.20 180.18 170.12 1280/40960 4194304\n") == 1280);
  for (const char* text : {"", "1/80", "0.20 0.18 0.12 ", "0.20 0.18 0.12 x/80 1", "0.20 0.18 0.12 7", "0 0 0 -/9"})
    CHECK(HostLoad::running_threads(text) == 0);
}

TEST_CASE("more threads that run than there are cores exceed them, and the answer holds for 2 ms") {
  HostLoad& load = HostLoad::instance();
  std::atomic<bool> ends{false};
  std::vector<std::thread> busy;
  for (unsigned i = 0; i <= std::thread::hardware_concurrency(); ++i)
    busy.emplace_back([&] {
      while (!ends.load()) {
      }
    });
  auto now = HostLoad::Clock::now() + std::chrono::hours(1);  // a look, whatever was asked before
  const dtrain::Deadline deadline = dtrain::Deadline::after(std::chrono::seconds(60));
  bool exceeded = false;
  while (!exceeded && !deadline.passed()) {
    now += std::chrono::milliseconds(3);
    exceeded = load.exceeds_cores(now);
  }
  CHECK(exceeded);
  ends = true;
  for (std::thread& thread : busy)
    thread.join();
  CHECK(load.exceeds_cores(now + std::chrono::milliseconds(1)));
}
