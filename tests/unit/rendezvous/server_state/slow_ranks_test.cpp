// Which rank computes longer than the others, by windows of made-up times.

#include "dtrain/rendezvous/server_state/slow_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "unit/rendezvous/prelude.hpp"

namespace {

using dtrain::rendezvous::ComputingWindow;
using dtrain::rendezvous::SlowRanks;

constexpr std::uint64_t window_steps = 50;

/// Nearly normal, of variance 1, the same with every library.
double normal(std::mt19937& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i)
    sum += static_cast<double>(random()) / 4294967296.0;
  return sum;
}

/// A job whose ranks send a window after each 50 steps.
struct Job {
  /// Milliseconds of a rank's pass in a step.
  using Times = std::function<double(int rank, std::uint64_t step)>;

  explicit Job(int world_size, double factor = 1.15) : ranks(world_size), slow(factor) {}

  static ComputingWindow window_of(std::vector<double> milliseconds, std::uint64_t first, int ranks) {
    std::sort(milliseconds.begin(), milliseconds.end());
    const auto at = [&](double share) {
      return static_cast<std::uint64_t>(
          1e6 * milliseconds[static_cast<std::size_t>(share * static_cast<double>(milliseconds.size()))]);
    };
    ComputingWindow window;
    window.first_step = first;
    window.last_step = first + milliseconds.size() - 1;
    window.steps = milliseconds.size();
    window.lower_quartile = at(0.25);
    window.median = at(0.5);
    window.upper_quartile = at(0.75);
    window.backward = window.median * 3 / 4;
    window.outside = window.median / 4;
    window.ranks = static_cast<std::uint32_t>(ranks);
    return window;
  }

  void receive(int rank, const ComputingWindow& window) {
    RankStatus status;
    status.computing = window;
    status.process = static_cast<std::uint32_t>(1000 + rank);
    for (std::string& line : slow.receive(rank, rank < 4 ? "a" : "b", status, static_cast<std::size_t>(ranks), now)) {
      lines.push_back(std::move(line));
      named_at.push_back(step);
    }
  }

  /// Makes so many windows.
  void run(int windows, const Times& time) {
    for (int i = 0; i < windows; ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<double> times;
        for (std::uint64_t each = step; each < step + window_steps; ++each)
          times.push_back(time(rank, each));
        receive(rank, window_of(std::move(times), step, ranks));
      }
      step += window_steps;
      now += 10s;
    }
  }

  int ranks;
  SlowRanks slow;
  std::uint64_t step = 21;
  SlowRanks::Clock::time_point now{};
  std::vector<std::string> lines;
  std::vector<std::uint64_t> named_at;
};

/// Times of one kind of job, of 10 ms, from a fixed seed; rank `slow` takes `factor` times as long from step `from` on.
Job::Times times_of(const std::string& kind, std::mt19937& random, int slow = -1, double factor = 1,
                    std::uint64_t from = 0) {
  return [=, &random](int rank, std::uint64_t step) {
    double time = 10 * (rank == slow && step >= from ? factor : 1);
    if (kind == "quiet") time *= std::exp(0.02 * normal(random));
    if (kind == "loaded") time *= std::exp(0.08 * normal(random));
    if (kind == "lengths") time *= std::exp(0.35 * normal(random));
    if (kind == "heavy") time *= std::exp(0.25 * normal(random)) * (random() % 20 == 0 ? 3 : 1);
    if (kind == "rank 0 logs") time *= std::exp(0.05 * normal(random)) * (rank == 0 ? 1.04 : 1);
    if (kind == "rank 0 logs" && rank == 0 && step % 100 == 0) time += 80;
    return time;
  };
}

}  // namespace

TEST_CASE("a rank that takes 1.25 times as long is named, once, within 500 steps, and no other rank is") {
  for (const char* const kind : {"quiet", "loaded", "lengths", "heavy", "rank 0 logs"}) {
    for (const int ranks : {2, 3, 4, 8, 16}) {
      CAPTURE(std::string(kind));
      CAPTURE(ranks);
      std::mt19937 random(7);
      Job job(ranks);
      job.run(60, times_of(kind, random));
      CHECK(job.lines == std::vector<std::string>{});
      const std::uint64_t from = job.step;
      job.run(40, times_of(kind, random, ranks - 1, 1.25, from));
      REQUIRE(job.lines.size() == 1);
      CHECK(job.lines.front().starts_with("rank " + std::to_string(ranks - 1) + " (host "));
      CHECK(job.named_at.front() - from <= 500);
      if (std::string(kind) == "quiet") CHECK(job.named_at.front() - from == 3 * window_steps);  // the fourth window
    }
  }
}

TEST_CASE("the line says how long, since when, in which part, what the others wait, and whether a core was missing") {
  Job job(3);
  const auto window = [&](int rank, std::uint64_t backward_ms, std::uint64_t outside_ms, std::uint32_t core_wait) {
    ComputingWindow made =
        Job::window_of(std::vector<double>(50, static_cast<double>(backward_ms + outside_ms)), job.step, 3);
    made.backward = 1'000'000 * backward_ms;
    made.outside = 1'000'000 * outside_ms;
    made.core_wait = core_wait;
    job.receive(rank, made);
  };
  for (int i = 0; i < 4; ++i) {
    window(0, 100, 51, 900);
    window(1, 100, 51, 0);
    window(2, 160, 52, i < 3 ? 0 : 314);
    job.step += 50;
  }
  CHECK(job.lines ==
        std::vector<std::string>{
            "rank 2 (host a, process 1002) computes 212 ms a step, 1.40 times the median of 3 ranks, since "
            "about step 21; 1.60 times in the backward pass; 1.02 times outside of it; the others wait up to 61 "
            "ms of each step for it; its thread was without a core for 31% of the time"});
}

TEST_CASE("of two ranks the slower one is compared with the other; a part of less than a tenth is not told") {
  Job job(2);
  job.run(4, [](int rank, std::uint64_t) { return rank == 0 ? 13.0 : 10.0; });
  CHECK(job.lines ==
        std::vector<std::string>{
            "rank 0 (host a, process 1000) computes 13 ms a step, 1.30 times rank 1's, since about step "
            "21; 1.30 times in the backward pass; 1.30 times outside of it; the others wait up to 3 ms of each "
            "step for it"});
}

TEST_CASE("a smaller difference is named after twelve windows, of which two may be usual") {
  Job job(4);
  const auto times = [](int rank, std::uint64_t step) {
    const bool is_usual = step / window_steps == 5;
    return rank == 1 && !is_usual ? 11.2 : 10.0;
  };
  job.run(11, times);
  CHECK(job.lines.empty());
  job.run(1, times);
  REQUIRE(job.lines.size() == 1);
  CHECK(job.lines.front().starts_with("rank 1 (host a, process 1001) computes 11.2 ms a step, 1.12 times the median"));
}

TEST_CASE("a pause of three windows names nobody, and a rank that recovers and slows down again is named again") {
  Job job(4);
  const auto slow = [](int rank, std::uint64_t) { return rank == 2 ? 20.0 : 10.0; };
  const auto equal = [](int, std::uint64_t) { return 10.0; };
  job.run(3, slow);
  job.run(1, equal);
  CHECK(job.lines.empty());
  job.run(9, slow);
  CHECK(job.lines.size() == 1);
  job.run(1, equal);
  job.run(4, slow);
  CHECK(job.lines.size() == 1);  // one usual window is no recovery
  job.run(2, equal);
  job.run(4, slow);
  CHECK(job.lines.size() == 2);
}

TEST_CASE("a difference that the steps' own spread may make names nobody") {
  for (const double factor : {1.3, 1.6}) {
    Job job(2);
    for (std::uint64_t i = 0; i < 4; ++i) {
      for (const int rank : {0, 1}) {
        ComputingWindow made = Job::window_of(std::vector<double>(50, rank == 0 ? 10 : 10 * factor), 21 + 50 * i, 2);
        made.lower_quartile = made.median / 2;
        made.upper_quartile = made.median * 3 / 2;
        job.receive(rank, made);
      }
    }
    CHECK(job.lines.size() == (factor > 1.5 ? 1 : 0));
  }
}

TEST_CASE("more ranks than an eighth are one line, which names their host if it is one") {
  Job job(8);
  job.run(4, [](int rank, std::uint64_t) { return rank >= 4 && rank < 7 ? 10.0 + rank : 10.0; });
  CHECK(job.lines ==
        std::vector<std::string>{"ranks 4-6 (host b) compute 1.40 to 1.60 times as long as the median of 8 ranks, "
                                 "since about step 21"});
  Job other(8);
  other.run(4, [](int rank, std::uint64_t) { return rank == 3 || rank == 4 ? 14.0 : 10.0; });
  REQUIRE(other.lines.size() == 1);
  CHECK(other.lines.front().starts_with("ranks 3-4 (several hosts) compute 1.40 to 1.40 times"));
}

TEST_CASE("six lines are logged in an hour") {
  Job job(2);
  for (int i = 0; i < 10; ++i) {
    job.run(4, [](int rank, std::uint64_t) { return rank == 0 ? 13.0 : 10.0; });
    job.run(2, [](int, std::uint64_t) { return 10.0; });
  }
  CHECK(job.lines.size() == 6);
  job.now += std::chrono::hours(1);
  job.run(4, [](int rank, std::uint64_t) { return rank == 0 ? 13.0 : 10.0; });
  CHECK(job.lines.size() == 7);
}

TEST_CASE("windows that are shifted against each other are compared by their common steps") {
  Job job(2);
  std::mt19937 random(3);
  const auto send = [&](int rank, std::uint64_t first, double time) {
    job.receive(rank, Job::window_of(std::vector<double>(window_steps, time), first, 2));
  };
  for (std::uint64_t i = 0; i < 6; ++i) {
    send(0, 21 + window_steps * i, 10);
    send(1, 40 + window_steps * i, 13);  // 31 steps of 50
  }
  REQUIRE(job.lines.size() == 1);
  CHECK(job.lines.front().starts_with("rank 1 (host a"));

  Job apart(2);
  for (std::uint64_t i = 0; i < 6; ++i) {
    apart.receive(0, Job::window_of(std::vector<double>(window_steps, 10), 21 + 100 * i, 2));
    apart.receive(1, Job::window_of(std::vector<double>(window_steps, 13), 71 + 100 * i, 2));
  }
  CHECK(apart.lines.empty());
}

TEST_CASE("nobody is named by a wrapper of fewer ranks, while a rank has no window, or with the factor 0") {
  const auto slow = [](int rank, std::uint64_t) { return rank == 0 ? 20.0 : 10.0; };
  Job off(2, 0);
  off.run(20, slow);
  CHECK(off.lines.empty());
  Job few(4);
  few.ranks = 2;  // the windows say 2 ranks
  for (int i = 0; i < 8; ++i)
    for (int rank = 0; rank < 2; ++rank) {
      RankStatus status;
      status.computing =
          Job::window_of(std::vector<double>(50, slow(rank, 0)), 21 + 50 * static_cast<std::uint64_t>(i), 2);
      CHECK(few.slow.receive(rank, "a", status, 4, few.now).empty());
    }
  Job silent(3);
  for (std::uint64_t i = 0; i < 8; ++i)
    for (const int rank : {0, 1})
      silent.receive(rank, Job::window_of(std::vector<double>(50, slow(rank, 0)), 21 + 50 * i, 3));
  CHECK(silent.lines.empty());
}

TEST_CASE("windows of a wrapper that is made anew are no continuation, and the factor can be chosen") {
  const auto slow = [](int rank, std::uint64_t) { return rank == 0 ? 13.0 : 10.0; };
  Job job(2);
  job.run(3, slow);
  job.step = 21;
  job.run(3, slow);
  CHECK(job.lines.empty());
  job.run(1, slow);
  CHECK(job.lines.size() == 1);
  Job patient(2, 1.5);
  patient.run(11, slow);
  CHECK(patient.lines.empty());
}

TEST_CASE("ranks with unequal passes in a step are not compared") {
  Job job(2);
  for (std::uint64_t i = 0; i < 20; ++i) {
    for (const int rank : {0, 1}) {
      ComputingWindow made = Job::window_of(std::vector<double>(50, rank == 0 ? 40 : 15), 21 + 50 * i, 2);
      made.passes = rank == 0 ? 4000 : 1000;
      job.receive(rank, made);
    }
  }
  CHECK(job.lines.empty());
}

TEST_CASE("a small factor finds a small difference, and the line has the windows' first step") {
  Job job(2, 1.03);
  job.run(1, [](int, std::uint64_t) { return 10.0; });
  job.run(4, [](int rank, std::uint64_t) { return rank == 0 ? 10.6 : 10.0; });
  REQUIRE(job.lines.size() == 1);
  CHECK_CONTAINS(job.lines.front(), "1.06 times rank 1's, since about step 71;");
  Job other(2);  // the last window of twelve is a usual one
  other.run(1, [](int, std::uint64_t) { return 10.0; });
  other.run(10, [](int rank, std::uint64_t) { return rank == 0 ? 11.1 : 10.0; });
  other.run(1, [](int rank, std::uint64_t) { return rank == 0 ? 11.9 : 10.0; });
  other.run(1, [](int rank, std::uint64_t) { return rank == 0 ? 10.7 : 10.0; });
  REQUIRE(other.lines.size() == 1);
  CHECK_CONTAINS(other.lines.front(), "since about step 21;");
}

TEST_CASE("a window that no rank can have made is left out") {
  for (int kind = 0; kind < 7; ++kind) {
    Job job(2);
    for (std::uint64_t i = 0; i < 5; ++i) {
      ComputingWindow made = Job::window_of(std::vector<double>(50, 20), 21 + 50 * i, 2);
      if (kind == 0) made.lower_quartile = 0;
      if (kind == 1) made.upper_quartile = made.median - 1;
      if (kind == 2) made.last_step = made.first_step - 1;
      if (kind == 3) made.first_step = 0;
      if (kind == 5) made.core_wait = 1001;
      if (kind == 6) made.backward = ~std::uint64_t{0};
      if (kind == 4) made.upper_quartile = ~std::uint64_t{0};
      job.receive(0, made);
      job.receive(1, Job::window_of(std::vector<double>(50, 10), 21 + 50 * i, 2));
    }
    CAPTURE(kind);
    CHECK(job.lines.empty());
  }
}
