#include "dtrain/rendezvous/server/rank_statuses.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

RankStatus at_step(std::uint64_t step, std::uint64_t unchanged_ms = 0, bool is_in_operation = true) {
  RankStatus status;
  status.step = step;
  status.unchanged_ms = unchanged_ms;
  status.channels = {{"group", "barrier", step, is_in_operation}};
  return status;
}

const Cause loss{CauseKind::lost, 1, "b", "its process ended"};

/// What is in the log after the loop has run for a time.
struct StatusesOfTwo {
  explicit StatusesOfTwo(bool goes_on_after_loss = false) {
    statuses.emplace(loop, goes_on_after_loss);
    statuses->note(0, "a", at_step(5));
    statuses->note(1, "b", at_step(4));
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
  statuses->note(0, "a", at_step(6));
  run_for(1ms);
  CHECK_CONTAINS(captured.text(),
                 "dtrain: what each rank did when rank 1 was lost:\n"
                 "dtrain:   rank 1 (host b), step 4: lost; 0.0 s before: in a collective");
  CHECK_CONTAINS(captured.text(), "\ndtrain:   rank 0 (host a), step 6: in a collective");
  statuses->print();
  statuses.reset();
  CHECK(tables() == 1);
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a rank that sends nothing is waited for 200 ms, and is said to send nothing") {
  const auto began = Deadline::Clock::now();
  statuses->failed({CauseKind::timeout, 0, "a", "a barrier"});
  statuses->note(0, "a", at_step(5));
  for (const Deadline deadline = soon(); tables() == 0 && !deadline.passed();)
    run_for(1ms);
  CHECK(Deadline::Clock::now() - began >= 200ms);
  CHECK(tables() == 1);
  CHECK_CONTAINS(captured.text(), "dtrain:   rank 1 (host b), step 4: sends nothing; 0.");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "a rank that ends after the failure is not lost, and is not waited for") {
  statuses->failed({CauseKind::exception, 0, "a", "a mistake"});
  statuses->note(0, "a", at_step(5));
  statuses->note(1, "b", at_step(4));
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

TEST_CASE_FIXTURE(StatusesOfTwo, "a rank that has left is not in the table, and one rank alone makes none") {
  statuses->left(1);
  statuses->failed({CauseKind::exception, 0, "a", "a mistake"});
  statuses->note(0, "a", at_step(5));
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

TEST_CASE("a job that fails before its first step and collective makes no table") {
  support::CapturedStderr captured;
  EventLoop loop;
  {
    RankStatuses statuses(loop, false);
    statuses.note(0, "a", at_step(0));
    statuses.note(1, "a", at_step(0));
    statuses.failed({CauseKind::disagreement, -1, "", "ranks differ"});
  }
  CHECK(captured.text() == "");
}

TEST_CASE_FIXTURE(StatusesOfTwo, "where nothing moves, a table says so after 10 s, 20 s and 40 s") {
  const auto pass = [&](std::uint64_t first, std::uint64_t second, bool is_in_operation = true) {
    statuses->note(1, "b", at_step(4, second, is_in_operation));
    statuses->note(0, "a", at_step(5, first, is_in_operation));
  };
  const auto said = [&] { return static_cast<int>(support::count_of(captured.text(), "nothing has moved for ")); };
  pass(9000, 9000);
  pass(60000, 500);           // one moves
  pass(60000, 60000, false);  // nobody waits for another rank
  CHECK(said() == 0);
  pass(10000, 12000);
  CHECK(said() == 1);
  CHECK_CONTAINS(captured.text(),
                 "dtrain: nothing has moved for 10.0 s; what each rank does:\n"
                 "dtrain:   rank 1 (host b), step 4: in a collective for 12.0 s; in barrier, operation 4 of channel "
                 "'group'\n"
                 "dtrain:   rank 0 (host a), step 5: in a collective for 10.0 s; in barrier, operation 5 of channel "
                 "'group', which rank 1 has not begun\n");
  pass(19000, 19000);
  CHECK(said() == 1);
  pass(20000, 20000);
  CHECK(said() == 2);
  pass(10, 10);
  pass(30000, 30000);  // a later wait, as after each epoch
  CHECK(said() == 2);
  pass(40000, 40000);
  CHECK(said() == 3);
}
