#include "unit/ddp/prelude.hpp"

TEST_CASE("where it is allowed, a gradient that is not announced counts as zeros, bound or not") {
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    FakeRank rank({3, 100, 1, 17}, {256, 512}, true, std::chrono::seconds(60), {.allow_unused_parameters = true});
    if (bound) rank.bind_all();
    for (const std::size_t unused : {0u, 2u, 3u}) {
      for (std::size_t i = 0; i < 4; ++i)
        rank.write(i, 5.0F);  // stale in what is not announced
      Step step = rank.reducer->begin();
      for (std::size_t i = 0; i < 4; ++i) {
        if (i != unused) step.ready(i);
      }
      step.finish();
      for (std::size_t i = 0; i < 4; ++i)
        CHECK(rank.read(i) == (i == unused ? 0.0F : 50.0F));
    }
    Step none = rank.reducer->begin();
    none.finish();
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(rank.read(i) == 0.0F);
    CHECK(rank.reducer->statistics().steps == 4);
    CHECK_FALSE(rank.latch->failed());
  }
}

TEST_CASE("a gradient that was left in a step without reduction takes part in the next one, announced or not") {
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    FakeRank rank({3, 100, 1}, {256, 512}, true, std::chrono::seconds(60), {.allow_unused_parameters = true});
    if (bound) rank.bind_all();
    dtrain::ddp::Accumulation accumulation = rank.reducer->accumulation();
    for (std::size_t i = 0; i < 3; ++i)
      rank.write(i, 5.0F);
    Step kept(accumulation);
    kept.ready(1);
    kept.finish();
    Step first = rank.reducer->begin();
    first.ready(0);
    first.finish();
    CHECK(rank.read(0) == 50.0F);
    CHECK(rank.read(1) == 50.0F);
    CHECK(rank.read(2) == 0.0F);

    rank.write(1, 5.0F);  // what was left has been reduced
    Step second = rank.reducer->begin();
    second.ready(0);
    second.finish();
    CHECK(rank.read(1) == 0.0F);
  }
}

TEST_CASE("what a step without reduction has left is not lost to other memory in the next one") {
  FakeRank rank({3, 100});
  dtrain::ddp::Accumulation accumulation = rank.reducer->accumulation();
  Step kept(accumulation);
  kept.ready(0);
  kept.finish();
  rank.write(0, 5.0F);
  std::vector<float> elsewhere(100, 7.0F);
  Step step = rank.reducer->begin();
  CHECK_THROWS_WITH_AS(step.ready(0, dtrain::tensor_view(elsewhere.data(), {3}), {}),
                       doctest::Contains("'p0' came with other memory, and what steps under no_sync() left"),
                       dtrain::Error);
  step.ready(0, rank.parameters[0].gradient, {});
  step.ready(1, dtrain::tensor_view(elsewhere.data(), {100}), {});
  step.finish();
  CHECK(rank.read(0) == 50.0F);
  CHECK(rank.read(1) == 70.0F);
}

TEST_CASE("an empty gradient may come without memory, in a step without reduction as in one with it") {
  FakeRank rank({0, 100});
  REQUIRE(rank.parameters[0].gradient.data != nullptr);
  dtrain::ddp::Accumulation accumulation = rank.reducer->accumulation();
  Step kept(accumulation);
  Step step = rank.reducer->begin();
  for (Step* const any : {&kept, &step}) {
    any->ready(0, dtrain::TensorView{nullptr, {0}, dtrain::DType::f32, {}}, {});
    any->ready(1);
    any->finish();
  }
  CHECK(rank.reducer->statistics().steps == 1);
}

TEST_CASE("a step without reduction refuses what one with it refuses") {
  FakeRank rank({3, 100});
  dtrain::ddp::Accumulation accumulation = rank.reducer->accumulation();
  Step step(accumulation);
  const dtrain::StreamHandle elsewhere{{dtrain::DeviceKind::cuda, 0}, nullptr};
  CHECK_THROWS_WITH_AS(step.ready(1, elsewhere), doctest::Contains("came with a stream of cuda:0"), dtrain::Error);
  CHECK_THROWS_WITH_AS(step.ready(2), doctest::Contains("the model has 2 parameters"), dtrain::Error);
  step.ready(1, dtrain::StreamHandle{});
  step.finish();
}
