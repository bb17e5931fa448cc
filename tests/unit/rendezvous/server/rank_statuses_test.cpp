#include "dtrain/rendezvous/server/rank_statuses.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

RankStatus at_step(std::uint64_t step, std::uint64_t unchanged_ms = 0, bool is_in_operation = true) {
  RankStatus status;
  status.step = step;
  status.unchanged_ms = unchanged_ms;
  status.channels = {{"group", "barrier", step, step, unchanged_ms, is_in_operation}};
  return status;
}

const Cause loss{CauseKind::lost, 1, "b", "its process ended"};

/// What is in the log after the loop has run for a time.
struct StatusesOfTwo {
  explicit StatusesOfTwo(bool goes_on_after_loss = false) {
    statuses.emplace(loop, goes_on_after_loss);
    statuses->joined(0, "a");
    statuses->joined(1, "b");
    statuses->received(0, at_step(5));
    statuses->received(1, at_step(4));
  }
  void run_for(std::chrono::milliseconds time) {
    const auto sleep = [](EventLoop& of, std::chrono::milliseconds length) -> Task<void> {
      co_await of.sleep_for(length);
    };
    loop.run_until(sleep(loop, time), soon(), "waiting");
  }
  int tables() { return static_cast<int>(support::count_of(captured.text(), "what each rank did when")); }

  support::CapturedStderr captured;
  EventLoop loop;
  std::optional<RankStatuses> statuses;
};

}  // namespace

TEST_CASE_FIXTURE(StatusesOfTwo,
                  "after a loss the table is printed once the ranks that are left have sent their last") {
  statuses->failed(loss);
  run_for(1ms);
  CHECK(tables() == 0);
  statuses->received(0, at_step(6));
  run_for(1ms);
  CHECK_CONTAINS(captured.text(),
                 "dtrain: what each rank did when rank 1 was lost (rank, host, step, phase):\n"
                 "dtrain:   rank 1 (host b), step 4: lost; 0.0 s before: in a collective");
  CHECK_CONTAINS(captured.text(), "\ndtrain:   rank 0 (host a), step 6: in a collective");
  CHECK(statuses->take_table().empty());
  statuses.reset();
  CHECK(tables() == 1);
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a rank that sends nothing is waited for 200 ms, and is said to send nothing") {
  const auto began = Deadline::Clock::now();
  statuses->failed({CauseKind::timeout, 0, "a", "a barrier"});
  statuses->received(0, at_step(5));
  for (const Deadline deadline = soon(); tables() == 0 && !deadline.passed();)
    run_for(1ms);
  CHECK(Deadline::Clock::now() - began >= 200ms);
  CHECK(tables() == 1);
  CHECK_CONTAINS(captured.text(), "dtrain:   rank 1 (host b), step 4: sends nothing; 0.");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "findings of some time are one line, of the earliest step's ranks") {
  const auto send = [&](int rank, std::uint32_t number, std::uint64_t step, bool is_sum, const char* text) {
    RankStatus status = at_step(9, 0, false);
    status.finding = {number, step, is_sum, text};
    statuses->received(rank, status);
  };
  statuses->joined(2, "b");
  send(1, 1, 812, false, "its weights");
  send(0, 1, 811, true, "the sum");  // true of every rank, and explained by another's
  send(2, 1, 812, false, "its weights");
  send(0, 2, 813, false, "later");
  CHECK(captured.text() == "");
  run_for(1600ms);
  send(1, 1, 812, false, "its weights");
  CHECK(captured.text() == "dtrain: ranks 1-2: its weights\n");
  send(0, 3, 812, true, "the sum");   // of what rank 1 has spread
  send(2, 2, 813, false, "its own");  // by weights that the sum has spoilt
  run_for(1600ms);
  send(1, 1, 812, false, "its weights");
  CHECK(captured.text() == "dtrain: ranks 1-2: its weights\n");
  send(1, 2, 950, true, "the sum");
  send(2, 3, 950, true, "the sum");
  statuses->left(1);
  statuses->left(2);
  statuses.reset();
  CHECK(captured.text() == "dtrain: ranks 1-2: its weights\ndtrain: the sum\n");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "ranks with another finding in the same step are told beside the first") {
  for (const int rank : {1, 0}) {
    RankStatus status = at_step(5, 0, false);
    status.finding = {1, 5, false, "layer " + std::to_string(rank)};
    statuses->received(rank, status);
  }
  statuses.reset();
  CHECK(captured.text() == "dtrain: rank 0: layer 0; rank 1 had others in that step\n");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a finding stands above the table, whoever prints it") {
  RankStatus status = at_step(5, 0, false);
  status.finding = {1, 5, false, "a gradient"};
  statuses->received(1, status);
  statuses->failed({CauseKind::exception, 1, "b", "the loss is nan"});
  statuses->disconnected(1);
  statuses->received(0, at_step(5));
  run_for(1ms);
  CHECK_CONTAINS(captured.text(), "dtrain: rank 1: a gradient\ndtrain: what each rank did when rank 1 failed");
}

TEST_CASE("a rank that computes longer than the other is logged, until the job ends") {
  for (const double factor : {0.0, 1.15}) {
    support::CapturedStderr captured;
    EventLoop loop;
    RankStatuses statuses(loop, false, true, factor);
    statuses.joined(0, "a");
    statuses.joined(1, "b");
    for (std::uint64_t window = 0; window < 5; ++window) {
      for (const int rank : {0, 1}) {
        RankStatus status = at_step(50 * window, 0, false);
        const std::uint64_t time = rank == 0 ? 10'000'000 : 13'000'000;
        status.computing = {1 + 50 * window, 50 + 50 * window, 50, time, time, time, time, 0, 2, 0};
        statuses.received(rank, status);
      }
    }
    const bool is_told =
        contains(captured.text(), "dtrain: rank 1 (host b, process 0) computes 13 ms a step, 1.30 times");
    CHECK(is_told == (factor > 0));
  }
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a rank that ends after the failure is not lost, and is not waited for") {
  statuses->failed({CauseKind::exception, 0, "a", "a mistake"});
  statuses->received(0, at_step(5));
  statuses->received(1, at_step(4));
  statuses->disconnected(0);
  run_for(1ms);
  CHECK(tables() == 1);
  CHECK_FALSE(contains(captured.text(), "lost"));
}

TEST_CASE_FIXTURE(StatusesOfTwo, "the table is printed at the latest when the job ends") {
  statuses->failed(loss);
  statuses.reset();
  CHECK(tables() == 1);
}

TEST_CASE("an owner that prints the table itself takes it, once") {
  support::CapturedStderr captured;
  EventLoop loop;
  RankStatuses statuses(loop, false, false);
  for (const int rank : {0, 1}) {
    statuses.joined(rank, "a");
    statuses.received(rank, at_step(3));
  }
  CHECK(statuses.take_table().empty());
  statuses.failed(loss);
  CHECK(statuses.take_table().size() == 3);
  CHECK(statuses.take_table().empty());
  CHECK(captured.text() == "");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a rank that has left is not in the table, and one rank alone makes none") {
  statuses->left(1);
  statuses->failed({CauseKind::exception, 0, "a", "a mistake"});
  statuses->received(0, at_step(5));
  run_for(1ms);
  CHECK(captured.text() == "");
}

TEST_CASE("the end by a signal, a resize, and the loss of a worker of an elastic job make no table") {
  for (const CauseKind kind : {CauseKind::stopped, CauseKind::resized, CauseKind::lost}) {
    StatusesOfTwo two(kind == CauseKind::lost);
    two.statuses->failed({kind, 1, "b", ""});
    two.statuses.reset();
    CHECK(two.captured.text() == "");
  }
}

TEST_CASE("an exception of a worker of an elastic job makes a table of the attempt that it ends") {
  StatusesOfTwo two(true);
  two.statuses->failed({CauseKind::exception, 1, "b", "a mistake"});
  two.statuses.reset();
  CHECK_CONTAINS(
      two.captured.text(),
      "dtrain: an attempt of the job has ended: rank 1 on host b failed: a mistake\ndtrain: what each rank did when "
      "rank 1 failed (rank, host, step, phase):\n");
}

TEST_CASE("a job that fails before its first step and collective makes no table") {
  support::CapturedStderr captured;
  EventLoop loop;
  {
    RankStatuses statuses(loop, false);
    for (const int rank : {0, 1}) {
      statuses.joined(rank, "a");
      statuses.received(rank, at_step(0));
    }
    statuses.failed({CauseKind::disagreement, -1, "", "ranks differ"});
  }
  CHECK(captured.text() == "");
}

TEST_CASE("ranks that have sent nothing yet are waited for, and a status that comes later is in the table") {
  support::CapturedStderr captured;
  EventLoop loop;
  RankStatuses statuses(loop, false);
  for (const int rank : {0, 1, 2})
    statuses.joined(rank, "a");
  statuses.failed({CauseKind::lost, 1, "a", "its process ended"});
  const auto turn = [](EventLoop& of) -> Task<void> { co_await of.sleep_for(1ms); };
  statuses.received(0, at_step(3));
  loop.run_until(turn(loop), soon(), "waiting");
  CHECK(captured.text() == "");
  statuses.received(2, at_step(3));
  statuses.received(2, at_step(9));  // what a rank does after its last status is its end
  loop.run_until(turn(loop), soon(), "waiting");
  CHECK(captured.text() ==
        "dtrain: the job failed: rank 1 on host a was lost: its process ended\n"
        "dtrain: what each rank did when rank 1 was lost (rank, host, step, phase):\n"
        "dtrain:   rank 1 (host a): lost, before its first status\n"
        "dtrain:   ranks 0 and 2 (host a), step 3: in a collective; in barrier, operation 3 of channel 'group'\n");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a rank that leaves after the failure stays in the table") {
  statuses->failed({CauseKind::exception, 0, "a", "a mistake"});
  statuses->received(0, at_step(5));
  statuses->left(0);
  statuses->disconnected(1);
  run_for(1ms);
  CHECK_CONTAINS(captured.text(), "rank 0 (host a), step 5: in a collective", "rank 1 (host b), step 4: has ended; 0.");
}

TEST_CASE_FIXTURE(StatusesOfTwo,
                  "a job that is to end by a signal makes no table, whatever its ranks' ends look like") {
  statuses->stopped();
  statuses->failed(loss);
  statuses->received(0, at_step(5, 60000));
  run_for(1ms);
  statuses.reset();
  CHECK(captured.text() == "");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "where ranks wait, a table says so after 10 s, 20 s and 40 s") {
  const auto said = [&] { return static_cast<int>(support::count_of(captured.text(), " waited for ")); };
  const auto pass = [&](std::uint64_t first, std::uint64_t second, bool is_in_operation = true) {
    run_for(1s);  // it looks once a second
    statuses->received(1, at_step(4, second, false));
    statuses->received(0, at_step(5, first, is_in_operation));
  };
  pass(8000, 60000);          // rank 1 is between steps
  pass(60000, 60000, false);  // nobody waits for another rank
  CHECK(said() == 0);
  pass(10000, 500);
  pass(11000, 500);
  CHECK(said() == 1);
  CHECK_CONTAINS(captured.text(),
                 "dtrain: rank 0 has waited for 10.0 s; what each rank does (rank, host, step, phase):\n"
                 "dtrain:   rank 1 (host b), step 4: between steps for 0.5 s\n");
  pass(19000, 19000);
  CHECK(said() == 1);
  pass(20000, 20000);
  pass(21000, 21000);
  CHECK(said() == 2);
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a channel that waits is told of, also where the rank goes on in another one") {
  run_for(1s);
  RankStatus status = at_step(5, 100);
  status.channels = {{"group", "barrier", 9, 9, 100, true}, {"part", "barrier", 2, 2, 12000, true}};
  statuses->received(0, status);
  CHECK_CONTAINS(captured.text(), "rank 0 has waited for 10.0 s");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a rank that has joined again is not lost") {
  statuses->disconnected(1);
  CHECK(contains(statuses->lines()[1], "rank 1 (host b), step 4: lost;"));
  statuses->received(1, at_step(4));
  CHECK_FALSE(contains(statuses->lines()[1], "lost"));
}

TEST_CASE_FIXTURE(StatusesOfTwo, "times from outside overflow nothing") {
  run_for(1s);
  statuses->received(0, at_step(5, ~std::uint64_t{0}));
  CHECK_CONTAINS(captured.text(), "rank 0 has waited for 10.0 s", "in a collective for 1099511627.8 s");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a process that asks gets the number of ranks, their rate and the table") {
  CHECK(statuses->lines() ==
        Strings{
            "2 ranks, 0.0 steps a second (rank, host, step, phase)",
            "  rank 1 (host b), step 4: in a collective; in barrier, operation 4 of channel 'group'",
            "  rank 0 (host a), step 5: in a collective; in barrier, operation 5 of channel 'group', which rank 1 has "
            "not begun"});
  run_for(100ms);
  statuses->received(0, at_step(500'000));
  CHECK(contains(statuses->lines().front(), "2 ranks, ") != contains(statuses->lines().front(), " 0.0 steps"));
}
