#include "dtrain/ddp/reduction/accumulation.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

/// Passes and a step in which the library writes gradient i as `scale * (i + 1)`: over what is there, or adds to it.
struct SummingRank : FakeRank {
  explicit SummingRank(bool binds, DdpOptions options = {}, ReducerParts parts = {})
      : FakeRank({20, 3, 100, 17}, {256, 512}, true, 60s, options, std::move(parts)) {
    if (binds) bind_all();
    accumulation.use(Adds::wrapper, false);
  }
  void write_all(float scale, bool adds) {
    for (std::size_t i = 0; i < 4; ++i)
      write(i, (adds ? read(i) : 0.0F) + scale * static_cast<float>(i + 1));
  }
  void pass(Step step, float scale, bool adds) {
    write_all(scale, adds);
    for (std::size_t i = 4; i-- > 0;)
      step.ready(i);
    step.finish();
  }
  Accumulation accumulation = reducer->accumulation();
};

}  // namespace

TEST_CASE("dtrain adds up passes of a library that overwrites its gradients, and of one that adds") {
  support::Combinations(std::array{false, true}, std::array{false, true}, std::array{false, true})
      .for_each([&](bool binds, bool adds, bool checks) {
        CAPTURE(binds);
        CAPTURE(adds);
        SummingRank rank(binds, {}, {.late_writes = checks ? LateWrites::refused : LateWrites::unchecked});
        for (int round = 0; round < 3; ++round) {
          if (adds) rank.write_all(0, false);  // as such a program clears its gradients
          rank.pass(rank.accumulation.begin(), 1, adds);
          CHECK(rank.read(2) == 0.0F);
          rank.pass(rank.accumulation.begin(), 2, adds);
          rank.pass(rank.reducer->begin(), 4, adds);
          for (std::size_t i = 0; i < 4; ++i)
            CHECK(rank.read(i) == 70.0F * static_cast<float>(i + 1));
          rank.pass(rank.reducer->begin(), 3, false);  // the sums are gone
          CHECK(rank.read(2) == 90.0F);
        }
      });
}

TEST_CASE("without it the passes of a library that overwrites its gradients are lost") {
  SummingRank rank(false);
  rank.accumulation.use(Adds::model, false);
  rank.pass(rank.accumulation.begin(), 1, false);
  rank.pass(rank.reducer->begin(), 4, false);
  CHECK(rank.read(2) == 120.0F);
}

TEST_CASE("passes may give gradients in other memory, and parameters without ready() in the step have their sums") {
  for (const bool binds : {false, true}) {
    CAPTURE(binds);
    SummingRank rank(binds, {.allow_unused_parameters = true}, {.late_writes = LateWrites::refused});
    rank.pass(rank.reducer->begin(), 1, false);  // leaves reduced gradients
    std::vector<float> elsewhere(100, 5.0F);
    Step held = rank.accumulation.begin();
    held.ready(2, tensor_view(elsewhere));
    elsewhere.assign(100, 1e9F);
    held.finish();
    Step step = rank.reducer->begin();
    rank.write(0, 2.0F);
    step.ready(0);
    step.finish();
    CHECK(rank.read(0) == 20.0F);
    CHECK(rank.read(1) == 0.0F);
    CHECK(rank.read(2) == 50.0F);
  }
}

TEST_CASE("a second ready() in a pass, and a scope within one of the other choice, are refused") {
  SummingRank rank(false);
  Step held = rank.accumulation.begin();
  held.ready(1);
  CHECK_ERROR(held.ready(1), Errc::invalid_argument,
              "ready(1) for parameter 1 'p1' came twice in a pass under no_sync(Adds::wrapper)");
  held.finish();
  CHECK_ERROR(rank.accumulation.use(Adds::model, true), Errc::invalid_argument, "another choice of dtrain::Adds");
  rank.accumulation.use(Adds::wrapper, true);
}

TEST_CASE("sums that the program discards are in no step, with unused parameters either") {
  for (const bool binds : {false, true}) {
    CAPTURE(binds);
    SummingRank rank(binds, {.allow_unused_parameters = true});
    rank.pass(rank.accumulation.begin(), 1, false);
    rank.reducer->discard_accumulated();
    rank.pass(rank.accumulation.begin(), 2, false);
    rank.pass(rank.reducer->begin(), 4, false);
    CHECK(rank.read(2) == 180.0F);
    rank.pass(rank.accumulation.begin(), 1, false);
    rank.reducer->discard_accumulated();
    Step step = rank.reducer->begin();
    rank.write(0, 3.0F);
    step.ready(0);
    step.finish();
    CHECK(rank.read(0) == 30.0F);
    CHECK(rank.read(2) == 0.0F);
  }
}

TEST_CASE("a pass that an exception ends counts with its ready gradients, and leaves zeros") {
  SummingRank rank(false);
  {
    Step held = rank.accumulation.begin();
    rank.write(2, 1.0F);
    held.ready(2);
  }
  CHECK(rank.read(2) == 0.0F);
  rank.pass(rank.reducer->begin(), 1, false);
  CHECK(rank.read(2) == 40.0F);
}

TEST_CASE(
    "in stage 2 of a ShardedOptimizer the library may use a gradient's memory again after its ready() in a pass") {
  SummingRank rank(false, {}, {.late_writes = LateWrites::refused});
  rank.reducer->reuse_memory();
  Step held = rank.accumulation.begin();
  rank.write(2, 3.0F);
  held.ready(2);
  rank.write(2, 8.0F);
  held.finish();
}

TEST_CASE("a gradient that is written after its ready() in a pass ends the job, before it is cleared") {
  SummingRank rank(false, {}, {.late_writes = LateWrites::refused});
  Step held = rank.accumulation.begin();
  held.ready(2);
  rank.write(2, 8.0F);
  CHECK_ERROR(held.finish(), Errc::invalid_argument, "parameter 2 'p2' changed after ready(2)");
  REQUIRE(rank.latch->failed());
  CHECK_CONTAINS(rank.latch->cause()->text, "parameter 2 'p2' changed after ready(2)");
}
