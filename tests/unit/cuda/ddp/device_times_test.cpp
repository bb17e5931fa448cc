#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::ddp::ReducerStatistics;

/// A bucket for each of two gradients; gradient 1 comes first.
CudaTrainingRank::Wanted two_buckets(bool device_times) {
  CudaTrainingRank::Wanted wanted{.sizes = {1000, 5}};
  wanted.options.device_times = device_times;
  return wanted;
}

/// @param between on the compute stream, after the first gradient
void step(CudaTrainingRank& rank, std::chrono::milliseconds before = 0ms, std::chrono::milliseconds between = 0ms) {
  Step step = rank.reducer->begin();
  support::enqueue_delay(rank.stream(), before);
  step.ready(1, rank.stream().handle());
  support::enqueue_delay(rank.stream(), between);
  step.ready(0, rank.stream().handle());
  step.finish();
}

}  // namespace

TEST_CASE("on a device it is measured how long collectives run, and how long computing waits for them") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const auto job = std::make_shared<FakeJob>(2);
  std::barrier both(2);
  run_thread_ranks(2, [&](RankThread& self) {
    CudaTrainingRank rank(job, self.rank(), 2, two_buckets(true));
    for (int repeat = 0; repeat < 3; ++repeat) {
      both.arrive_and_wait();
      // Rank 0's first bucket waits for rank 1's while rank 0 computes; rank 1's second one for rank 0's, and with it
      // rank 1, which has nothing to compute by then.
      self.rank() == 0 ? step(rank, 0ms, 150ms) : step(rank, 60ms, 0ms);
      CHECK(rank.wait());
    }
    const ReducerStatistics statistics = rank.reducer->statistics();
    CAPTURE(to_string(statistics));
    CHECK(statistics.is_measured);
    CHECK(statistics.measured_steps == 3);
    CHECK(statistics.times.communication >= 3 * 20ms);
    CHECK(statistics.times.hidden <= statistics.times.communication);
    if (self.rank() == 0) {
      CHECK(statistics.times.hidden >= 3 * 20ms);
    } else {
      CHECK(statistics.times.exposed >= 3 * 20ms);
      CHECK(statistics.times.communication - statistics.times.hidden >= 3 * 20ms);
    }
    CHECK(to_string(statistics).find(", communication ") != std::string::npos);
  });
}

TEST_CASE("nothing is measured on a device where nobody wants it") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, two_buckets(false));
  step(rank);
  CHECK(rank.wait());
  const ReducerStatistics statistics = rank.reducer->statistics();
  CHECK(!statistics.is_measured);
  CHECK(statistics.measured_steps == 0);
  CHECK(to_string(statistics).find(", finish ") != std::string::npos);
}

TEST_CASE(
    "while a step is under way nothing is measured, so that statistics() may come beside another thread's ready") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  support::Gate gate;
  CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, two_buckets(true));
  support::enqueue_on_host(rank.stream(), [&] { gate.pass(); });
  step(rank);
  Step second = rank.reducer->begin();
  gate.open();
  CHECK(rank.wait());  // the first step is complete, and was not when the second began
  std::thread backward([&] { second.ready(1, rank.stream().handle()); });
  for (int repeat = 0; repeat < 100; ++repeat)
    CHECK(rank.reducer->statistics().measured_steps == 0);
  backward.join();
  second.ready(0, rank.stream().handle());
  second.finish();
  CHECK(rank.wait());
  CHECK(rank.reducer->statistics().measured_steps == 2);
}

TEST_CASE("the host waits for no measurement: steps for which no events are free are not measured") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  support::Gate gate;
  CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, two_buckets(true));
  support::enqueue_on_host(rank.stream(), [&] { gate.pass(); });
  for (int repeat = 0; repeat < 9; ++repeat)
    step(rank);
  CHECK(rank.reducer->statistics().measured_steps == 0);
  gate.open();
  CHECK(rank.wait());
  const auto measured = rank.reducer->statistics().measured_steps;
  CHECK(measured >= 1);
  CHECK(measured < 9);
  step(rank);
  CHECK(rank.wait());
  CHECK(rank.reducer->statistics().measured_steps == measured + 1);
  CHECK(rank.reducer->statistics().steps == 10);
}
