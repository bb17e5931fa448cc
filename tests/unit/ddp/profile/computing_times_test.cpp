#include "dtrain/ddp/profile/computing_times.hpp"

#include "unit/ddp/prelude.hpp"

namespace {

using dtrain::ddp::ComputingTimes;
using dtrain::rendezvous::ComputingWindow;
using Microseconds = ComputingTimes::Microseconds;

/// Times that another thread reads once a second.
struct ReadTimes {
  /// Adds so many steps of these times.
  void add(std::uint64_t count, float backward, float outside) {
    for (std::uint64_t i = 0; i < count; ++i)
      times.add(step++, Microseconds(backward), Microseconds(outside));
  }
  ComputingWindow after(std::chrono::seconds seconds) { return times.latest(now += seconds); }

  ComputingTimes times;
  std::uint64_t step = 21;
  ComputingTimes::Clock::time_point now = ComputingTimes::Clock::now();
};

}  // namespace

TEST_CASE("a window ends with 50 steps and ten seconds, and the next one begins with the next step") {
  ReadTimes read;
  CHECK(read.after(60s).steps == 0);
  read.add(49, 300, 100);
  CHECK(read.after(1s).steps == 0);
  CHECK(read.after(20s).steps == 0);  // there are not enough steps
  read.add(1, 300, 100);
  const ComputingWindow first = read.after(1s);
  CHECK(first == ComputingWindow{21, 70, 50, 400'000, 400'000, 400'000, 300'000, 100'000, 0, 0});
  read.add(60, 200, 100);
  CHECK(read.after(9s) == first);  // there is not enough time
  const ComputingWindow second = read.after(1s);
  CHECK(second == ComputingWindow{71, 130, 60, 300'000, 300'000, 300'000, 200'000, 100'000, 0, 0});
  CHECK(read.after(60s) == second);
}

TEST_CASE("the time of the first window begins when its first step is seen") {
  ReadTimes read;
  for (int second = 0; second < 60; ++second)
    CHECK(read.after(1s).steps == 0);
  read.add(50, 1, 1);
  CHECK(read.after(1s).steps == 0);
  CHECK(read.after(8s).steps == 0);
  CHECK(read.after(1s).steps == 50);
}

TEST_CASE("a window has quartiles of the sums, and medians of both parts") {
  ReadTimes read;
  for (int i = 0; i < 100; ++i)
    read.add(1, static_cast<float>(i), static_cast<float>(2 * (99 - i)));
  static_cast<void>(read.after(1s));
  const ComputingWindow window = read.after(10s);
  CHECK(window.lower_quartile == 124'000);  // the sums are 99 to 198
  CHECK(window.median == 149'000);
  CHECK(window.upper_quartile == 174'000);
  CHECK(window.backward == 50'000);
  CHECK(window.outside == 100'000);
}

TEST_CASE("of more steps than are kept those of the whole window count alike, and of a burst the last ones do") {
  ReadTimes read;
  for (int i = 0; i < 20; ++i) {
    read.add(900, i < 10 ? 100.0F : 200.0F, 0);
    CHECK(read.times.latest(read.now).steps == 0);
  }
  const ComputingWindow window = read.after(10s);
  CHECK(window.first_step == 21);
  CHECK(window.last_step == 18'020);
  CHECK(window.steps <= 4096);
  CHECK(window.steps >= 2048);
  CHECK(window.lower_quartile == 100'000);
  CHECK(window.upper_quartile == 200'000);

  ReadTimes burst;
  burst.add(5000, 100, 0);
  burst.add(1000, 300, 0);
  static_cast<void>(burst.after(1s));
  const ComputingWindow last = burst.after(10s);
  CHECK(last.steps == 1000);
  CHECK(last.first_step == 5021);
  CHECK(last.lower_quartile == 300'000);
}
