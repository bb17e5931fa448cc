#include "dtrain/ddp/step.hpp"
#include "unit/ddp/prelude.hpp"

TEST_CASE("a step that is destroyed unfinished is abandoned, and says whether an exception is under way") {
  FakeRank rank({1, 1});
  { const Step step = rank.reducer->begin(); }
  CHECK(rank.abandoned == std::vector<bool>{false});
  CHECK_FALSE(rank.latch->failed());  // the hook decides who tells the job

  FakeRank unwound({1, 1});
  try {
    const Step step = unwound.reducer->begin();
    throw std::runtime_error("loss is nan");
  } catch (const std::runtime_error&) {
  }
  CHECK(unwound.abandoned == std::vector<bool>{true});
}

TEST_CASE("a step made and dropped while an older exception unwinds is not blamed on that exception") {
  FakeRank rank({1});
  struct Cleanup {
    FakeRank& rank;
    ~Cleanup() { const Step step = rank.reducer->begin(); }
  };
  try {
    const Cleanup cleanup{rank};
    throw std::runtime_error("an older one");
  } catch (const std::runtime_error&) {
  }
  CHECK(rank.abandoned == std::vector<bool>{false});
}

TEST_CASE("a finished step and one that was moved from are not abandoned") {
  FakeRank rank({1});
  {
    Step first = rank.reducer->begin();
    const dtrain::Ready ready = first.ready();
    Step step = std::move(first);
    CHECK(first.finished());
    CHECK_FALSE(step.finished());
    ready(0);  // still the same step
    step.finish();
    CHECK(step.finished());
  }
  CHECK(rank.abandoned.empty());
}

TEST_CASE("assigning to an unfinished step abandons it") {
  FakeRank one({1});
  FakeRank two({1});
  Step step = one.reducer->begin();
  step = two.reducer->begin();
  CHECK(one.abandoned.size() == 1);
  step.ready(0);
  step.finish();
  CHECK(two.abandoned.empty());
}

TEST_CASE("after an abandoned step no other begins") {
  FakeRank rank({1});
  { const Step step = rank.reducer->begin(); }
  CHECK_THROWS_WITH_AS((void)rank.reducer->begin(), doctest::Contains("after a step that failed"), dtrain::Error);
}

TEST_CASE("without a group the job is notified at once that a step was abandoned") {
  FakeRank rank({1});
  dtrain::ddp::FailureContext context{rank.latch, 1, "host-a", std::chrono::seconds(1), {}};
  ddp_test::FakeReducer reducer(support::FakeCommunicator(rank.channel), rank.stream.ref(), rank.parameters,
                                dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(rank.parameters)),
                                dtrain::DdpOptions{.reduce_op = dtrain::ReduceOp::sum}, context);
  { const Step step = reducer.begin(); }
  REQUIRE(rank.latch->failed());
  CHECK(rank.latch->cause()->text == "a step was abandoned without finish()");
}
