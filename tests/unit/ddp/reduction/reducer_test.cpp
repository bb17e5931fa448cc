#include "unit/ddp/prelude.hpp"

namespace {

std::vector<std::size_t> ascending(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  return numbers;
}

}  // namespace

TEST_CASE("after a step every gradient is reduced, in its own memory, once, and the padding is not counted") {
  FakeRank rank({3, 100, 1, 17}, {256, 512});
  for (int repeat = 1; repeat <= 3; ++repeat) {
    Step step = rank.reducer->begin();
    for (std::size_t i = 0; i < 4; ++i) {
      rank.write(i, static_cast<float>(repeat) + static_cast<float>(i));
      step.ready(i);
    }
    step.finish();
    for (std::size_t i = 0; i < 4; ++i) {
      for (const float element : rank.gradients[i])
        CHECK(element == 10.0F * (static_cast<float>(repeat) + static_cast<float>(i)));
    }
    CHECK(rank.reducer->statistics().steps == static_cast<std::uint64_t>(repeat));
    CHECK(rank.reducer->statistics().bytes_reduced == static_cast<std::uint64_t>(repeat) * 4 * (3 + 100 + 1 + 17));
  }
  CHECK(rank.reducer->statistics().buckets == rank.reducer->plan().buckets.size());
  for (const auto& launch : rank.channel->launches)
    CHECK(launch.op == dtrain::ReduceOp::average);
}

TEST_CASE("a bound gradient keeps what it held, lives in the arena and is never copied") {
  FakeRank rank({5, 20});
  rank.write(0, 7.0F);
  rank.bind_all();
  CHECK(rank.read(0) == 7.0F);
  CHECK(rank.parameters[0].gradient.data == rank.channel->arena + rank.reducer->plan().offset_of[0]);
  Step step = rank.reducer->begin();
  rank.write(0, 1.5F);
  rank.write(1, 2.5F);
  step.ready(1);
  step.ready(0);
  step.finish();
  CHECK(rank.read(0) == 15.0F);
  CHECK(rank.read(1) == 25.0F);
  CHECK(rank.gradients[1][0] == 0.0F);  // the model's former memory was not touched
}

TEST_CASE("buckets are launched in the plan's order, whatever order the gradients come in") {
  std::mt19937 generator(3);
  for (int repeat = 0; repeat < 200; ++repeat) {
    FakeRank rank({1, 2, 3, 4, 5, 6, 7, 8});
    std::vector<std::size_t> order = ascending(8);
    std::shuffle(order.begin(), order.end(), generator);
    Step step = rank.reducer->begin();
    for (const std::size_t i : order)
      step.ready(i);
    CHECK(rank.launched() == ascending(8));
    step.finish();
  }
}

TEST_CASE("buckets are launched once and in the plan's order when several threads announce") {
  for (int repeat = 0; repeat < 50; ++repeat) {
    FakeRank rank(std::vector<std::size_t>(64, 5), {512, 1024});
    Step step = rank.reducer->begin();
    support::on_threads(4, [&](std::size_t t) {
      for (std::size_t i = t; i < 64; i += 4) {
        rank.write(i, static_cast<float>(i));
        step.ready(i);
      }
    });
    CHECK(rank.launched() == ascending(rank.reducer->plan().buckets.size()));
    step.finish();
    for (std::size_t i = 0; i < 64; ++i)
      CHECK(rank.read(i) == 10.0F * static_cast<float>(i));
  }
}

TEST_CASE("a bucket is launched, and can complete, before the backward pass ends") {
  FakeRank rank({1, 1, 1}, {0, 0}, false);
  rank.bind_all();
  Step step = rank.reducer->begin();
  CHECK(rank.launched().empty());
  rank.write(2, 4.0F);
  step.ready(2);
  CHECK(rank.launched() == std::vector<std::size_t>{0});
  CHECK(rank.read(2) == 4.0F);  // launched is not run
  rank.stream.run();
  CHECK(rank.read(2) == 40.0F);  // reduced while gradients 1 and 0 are still being computed
  step.ready(0);
  CHECK(rank.launched() == std::vector<std::size_t>{0});  // bucket 2 waits for bucket 1
  step.ready(1);
  CHECK(rank.launched() == std::vector<std::size_t>{0, 1, 2});
  rank.stream.run();
  step.finish();
}

TEST_CASE("finish waits until the last bucket is reduced") {
  FakeRank rank({1, 1}, {0, 0}, false);
  Step step = rank.reducer->begin();
  step.ready(0);
  step.ready(1);
  rank.stream.run(1);
  std::atomic<bool> told{false};
  std::thread completer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    told = true;
    rank.stream.run();
  });
  step.finish();
  CHECK(told);
  completer.join();
}

TEST_CASE("parameters without a gradient are named in the same step, five at most, and the job is notified") {
  FakeRank rank(std::vector<std::size_t>(10, 1));
  Step first = rank.reducer->begin();
  for (std::size_t i = 0; i < 10; ++i)
    first.ready(i);
  first.finish();
  Step step = rank.reducer->begin();
  step.ready(4);
  step.ready(9);
  CHECK_ERROR(step.finish(), Errc::missing_gradient,
              "in step 2 these parameters got no gradient: parameter 0 'p0', parameter 1 'p1', "
              "parameter 2 'p2', parameter 3 'p3', parameter 5 'p5' and 3 more");
  REQUIRE(rank.latch->failed());
  CHECK(rank.latch->cause()->kind == dtrain::CauseKind::exception);
  CHECK(rank.latch->cause()->rank == 1);
  CHECK(rank.latch->cause()->host == "host-a");
  CHECK_CONTAINS(rank.latch->cause()->text, "parameter 5 'p5'");
  CHECK(rank.abandoned.empty());
  CHECK(rank.reducer->statistics().steps == 1);
}

TEST_CASE("a parameter that is ready twice, one that does not exist and one outside a step are refused") {
  FakeRank rank({1, 1});
  dtrain::Ready late = [&] {
    Step step = rank.reducer->begin();
    step.ready(0);
    CHECK_ERROR(step.ready(0), Errc::invalid_argument, "ready(0) for parameter 0 'p0' came twice in step 1");
    CHECK_ERROR(step.ready(2), Errc::invalid_argument, "the model has 2 parameters");
    step.ready(1);
    dtrain::Ready announcer = step.ready();
    step.finish();
    CHECK_ERROR(step.ready(0), Errc::invalid_argument, "a step was used after finish()");
    CHECK_ERROR(step.finish(), Errc::invalid_argument, "a step was used after finish()");
    return announcer;
  }();
  CHECK_ERROR(late(0), Errc::invalid_argument, "when no step was under way");
  Step again = rank.reducer->begin();
  CHECK_ERROR(rank.reducer->begin(), Errc::invalid_argument, "begin() came while a step was under way");
  again.ready(0);
  again.ready(1);
  again.finish();
}

TEST_CASE("of two threads that announce the same parameter exactly one is refused") {
  for (int repeat = 0; repeat < 100; ++repeat) {
    FakeRank rank({1, 1});
    Step step = rank.reducer->begin();
    std::atomic<int> refused{0};
    support::on_threads(2, [&](std::size_t) { refused += support::error_of([&] { step.ready(0); }).code() ? 1 : 0; });
    CHECK(refused == 1);
    step.ready(1);
    step.finish();
  }
}

TEST_CASE("a host stream's handle changes nothing, a cuda one is unsupported by a host backend") {
  FakeRank rank({1});
  Step step = rank.reducer->begin();
  const dtrain::StreamHandle cuda{{dtrain::DeviceKind::cuda, 1}, nullptr};
  CHECK_ERROR(step.ready(0, cuda), Errc::unsupported, "ready(0) for parameter 0 'p0' came with a stream of cuda:1");
  rank.write(0, 2.0F);
  step.ready(0, dtrain::StreamHandle{});
  step.finish();
  CHECK(rank.read(0) == 20.0F);
}

TEST_CASE("a gradient may be in other memory: the result is in the parameter's own, bound or not") {
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    FakeRank rank({2, 2});
    if (bound) rank.bind_all();
    std::array<float, 2> foreign{3.0F, 4.0F};
    Step step = rank.reducer->begin();
    rank.write(1, 1.0F);
    step.ready(1);
    step.ready(0, dtrain::tensor_view(foreign.data(), {2}), {});
    step.finish();
    CHECK(rank.parameters[0].gradient.as<float>()[0] == 30.0F);
    CHECK(rank.parameters[0].gradient.as<float>()[1] == 40.0F);
    CHECK(foreign == std::array<float, 2>{3.0F, 4.0F});
  }
}

TEST_CASE("a gradient of another size or dtype is refused, and its parameter can still be announced") {
  FakeRank rank({2});
  std::array<double, 2> doubles{};
  std::array<float, 3> three{};
  Step step = rank.reducer->begin();
  CHECK_ERROR(step.ready(0, dtrain::tensor_view(doubles.data(), {2}), {}), Errc::invalid_argument,
              "came with f64 [2] on host, but the parameter's own is f32 [2] on host");
  CHECK_ERROR(step.ready(0, dtrain::tensor_view(three.data(), {3}), {}), Errc::invalid_argument,
              "came with f32 [3] on host");
  CHECK_ERROR(step.ready(0, dtrain::tensor_view(static_cast<float*>(nullptr), {2}), {}), Errc::invalid_argument,
              "came with no memory of f32 [2]");
  step.ready(0);
  step.finish();
}

TEST_CASE("parameters without elements are announced like any other") {
  FakeRank rank({0, 3, 0});
  rank.bind_all();
  for (int repeat = 0; repeat < 2; ++repeat) {
    Step step = rank.reducer->begin();
    rank.write(1, 1.0F);
    for (std::size_t i = 0; i < 3; ++i)
      step.ready(i);
    step.finish();
    CHECK(rank.read(1) == 10.0F);
  }
  FakeRank nothing({0, 0});
  Step step = nothing.reducer->begin();
  step.ready(1);
  CHECK_ERROR(step.finish(), Errc::missing_gradient, "parameter 0 'p0'");
}

TEST_CASE("once the job has failed every call throws its cause") {
  FakeRank rank({1, 1});
  Step step = rank.reducer->begin();
  step.ready(0);
  rank.latch->set({dtrain::CauseKind::lost, 2, "host-b", "connection closed"});
  CHECK_THROWS_AS(step.ready(1), dtrain::PeerLost);
  CHECK_THROWS_AS(step.finish(), dtrain::PeerLost);
  CHECK_THROWS_AS((void)rank.reducer->begin(), dtrain::PeerLost);
}

TEST_CASE("a communicator that fails while finish waits makes finish throw, with the job's cause where there is one") {
  FakeRank rank({1}, {0, 0}, true);
  Step step = rank.reducer->begin();
  step.ready(0);
  rank.channel->abort({dtrain::CauseKind::timeout, 1, "host-a", "an all_reduce"});
  std::thread store([&] { rank.latch->set({dtrain::CauseKind::exception, 0, "host-z", "loss is nan"}); });
  CHECK_THROWS_WITH_AS(step.finish(), doctest::Contains("loss is nan"), dtrain::JobFailed);
  store.join();
  CHECK(rank.reducer->statistics().steps == 0);
}

TEST_CASE("a stream that nobody runs ends in a timeout, not in a hang") {
  FakeRank rank({1}, {0, 0}, false, std::chrono::milliseconds(20));
  Step step = rank.reducer->begin();
  step.ready(0);
  CHECK_ERROR(step.finish(), Errc::timeout, "communication stream");
  rank.stream.run();
}

TEST_CASE("a launch that throws fails the step, in ready and again in finish, and the job is notified") {
  FakeRank rank({1, 1, 1});
  rank.channel->refuses_at = 1;
  Step step = rank.reducer->begin();
  step.ready(2);
  CHECK_THROWS_WITH(step.ready(1), "the channel refuses this launch");
  step.ready(0);
  CHECK(rank.launched() == std::vector<std::size_t>{0});
  CHECK_THROWS_WITH(step.finish(), "the channel refuses this launch");
  CHECK(rank.latch->failed());  // the others wait for what was not launched
  CHECK_ERROR(rank.reducer->begin(), Errc::job_failed, "the channel refuses this launch");
}

TEST_CASE("a reducer that is destroyed within a step ends its work first") {
  FakeRank rank({1, 1});
  {
    Step step = rank.reducer->begin();
    step.ready(1);
  }
  CHECK(rank.stream.completed() == 0);
  rank.reducer.reset();
  CHECK(rank.stream.completed() == 1);
  CHECK(rank.channel->failed());
}

TEST_CASE("a reducer that is destroyed waits for a launch, too, that threw when its collective was enqueued") {
  for (const bool finished : {false, true}) {
    CAPTURE(finished);
    dtrain::ddp::ReducerParts parts;
    parts.rebuild.publish_order = [](const std::vector<std::size_t>&) { throw std::runtime_error("no word"); };
    FakeRank rank({1, 1}, {0, 0}, true, std::chrono::seconds(60), {}, std::move(parts));
    {
      Step step = rank.reducer->begin();
      step.ready(1);
      CHECK_THROWS_WITH(step.ready(0), "no word");
      if (finished) CHECK_THROWS_WITH(step.finish(), "no word");
    }
    CHECK(rank.stream.enqueued() == 2);
    CHECK(rank.stream.completed() == 0);
    rank.reducer.reset();
    CHECK(rank.stream.completed() == 2);
  }
}

TEST_CASE("bound gradients stay where they are while gradient_memory is kept") {
  FakeRank rank({4});
  rank.bind_all();
  const std::shared_ptr<const void> kept = rank.reducer->gradient_memory();
  rank.write(0, 9.0F);
  rank.reducer.reset();
  CHECK(rank.read(0) == 9.0F);
}

TEST_CASE("ready launches each of many buckets, and one of them that throws is reported to the job") {
  FakeRank rank(std::vector<std::size_t>(60, 1));
  rank.channel->refuses_at = 50;
  Step step = rank.reducer->begin();
  for (std::size_t i = 60; i-- > 10;)
    step.ready(i);
  CHECK(rank.launched().size() == 50);
  CHECK_THROWS_WITH(step.ready(9), "the channel refuses this launch");
  for (std::size_t i = 9; i-- > 0;)
    step.ready(i);
  CHECK(!rank.latch->failed());
  CHECK_THROWS_WITH(step.finish(), "the channel refuses this launch");
  CHECK(rank.latch->failed());
  CHECK_ERROR(rank.reducer->begin(), Errc::job_failed, "the channel refuses this launch");
}
