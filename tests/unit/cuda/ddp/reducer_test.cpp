#include "dtrain/ddp/reduction/reducer.hpp"
#include "support/sanitized.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

/// A whole number below 2^20, so that sums of it are exact.
float value_of(int rank, int step, std::size_t i) {
  return static_cast<float>(1 + rank * 1000 + step * 17 + static_cast<int>(i));
}

/// Of whole numbers and few ranks: what NCCL's average rounds is the last bit.
bool is_mean(const std::vector<float>& values, int ranks, int step, std::size_t i) {
  const float expected = mean_over_ranks(ranks, [&](int rank) { return value_of(rank, step, i); });
  return std::all_of(values.begin(), values.end(),
                     [&](float value) { return std::abs(value - expected) <= 1e-6F * expected; });
}

/// Steps in which gradient i is computed on stream i % streams, late, and read where it was computed, at once.
void expect_means(int ranks, const CudaTrainingRank::Wanted& wanted, bool foreign) {
  const auto job = std::make_shared<FakeJob>(ranks);
  run_thread_ranks(ranks, [&](RankThread& self) {
    CudaTrainingRank rank(job, self.rank(), ranks, wanted);
    std::vector<support::DeviceBuffer> others;
    for (std::size_t i = 0; i < rank.count(); ++i)
      others.push_back(support::on_device(std::vector<float>(rank.size(i), -1.0F)));
    for (int step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < rank.count(); ++i)
        rank.prepare(i, value_of(self.rank(), step, i));
      self.doing("announcing");
      Step running = rank.reducer->begin();
      for (std::size_t i = rank.count(); i-- > 0;) {
        const support::StreamRef stream = rank.stream(i % wanted.streams);
        support::enqueue_delay(stream, 1ms);
        rank.compute(i, stream, foreign ? others[i].data() : nullptr);
        if (foreign) {
          dtrain::TensorView elsewhere = rank.parameters[i].gradient;
          elsewhere.data = others[i].data();
          running.ready(i, elsewhere, stream.handle());
        } else {
          running.ready(i, stream.handle());
        }
      }
      self.doing("finishing");
      running.finish();
      for (std::size_t i = 0; i < rank.count(); ++i)
        rank.use(i, rank.stream(i % wanted.streams));
      self.doing("waiting for the device");
      CHECK(rank.wait());
      for (std::size_t i = 0; i < rank.count(); ++i)
        CHECK(is_mean(rank.result(i), ranks, step, i));
    }
  });
}

}  // namespace

TEST_CASE("gradients of 1 to 8 ranks are averaged, bound or not, and the stream that made one reads the mean") {
  for (const int ranks : support::nccl_rank_counts()) {
    for (const bool bound : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(bound);
      expect_means(ranks, {.bound = bound}, false);
    }
  }
}

TEST_CASE("several streams may produce the gradients of one bucket") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    expect_means(2, {.sizes = {5, 1000, 17, 64, 0, 3}, .caps = {256, 4096}, .bound = bound, .streams = 3}, false);
  }
}

TEST_CASE("a gradient in other memory of the device is reduced into the parameter's own, bound or not") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    expect_means(2, {.caps = {256, 8192}, .bound = bound, .streams = 2}, true);
  }
}

TEST_CASE("finish does not wait for the device") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, {});
  support::Gate gate;
  std::atomic<bool> finished{false};
  support::enqueue_on_host(rank.stream(), [&] { gate.pass(); });
  rank.step();
  finished = true;
  Step next = rank.reducer->begin();  // nor does the next step
  for (std::size_t i = 0; i < rank.count(); ++i)
    next.ready(i, rank.stream().handle());
  next.finish();
  CHECK(finished);
  gate.open();
  CHECK(rank.wait());
}

TEST_CASE("a stream that made no gradient runs behind the step only if it is told so") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, {.streams = 2});
  support::Gate gate;
  support::enqueue_on_host(rank.stream(0), [&] { gate.pass(); });
  rank.step();
  dtrain::stream::cuda::Event unordered, ordered;
  rank.stream(1).record(unordered);
  CHECK(support::holds_soon([&] { return unordered.is_complete(); }));
  rank.reducer->order_after_step(rank.stream(1).handle());
  rank.stream(1).record(ordered);
  CHECK(gate.is_reached_soon());
  CHECK_FALSE(support::holds_soon([&] { return ordered.is_complete(); }, std::chrono::milliseconds(20)));
  gate.open();
  CHECK(rank.wait());
  CHECK(ordered.is_complete());
}

TEST_CASE("several threads may announce at once, each with its stream") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& self) {
    CudaTrainingRank rank(
        job, self.rank(), 2,
        {.sizes = std::vector<std::size_t>(24, 40), .caps = {512, 1024}, .bound = true, .streams = 3});
    for (int repeat = 0; repeat < 5; ++repeat) {
      for (std::size_t i = 0; i < rank.count(); ++i)
        rank.prepare(i, value_of(self.rank(), repeat, i));
      Step step = rank.reducer->begin();
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          support::check(cudaSetDevice(rank.nccl.device), "cudaSetDevice");
          for (std::size_t i = t; i < rank.count(); i += 3) {
            rank.compute(i, rank.stream(t));
            step.ready(i, rank.stream(t).handle());
          }
        });
      }
      for (std::thread& thread : threads)
        thread.join();
      step.finish();
      for (std::size_t i = 0; i < rank.count(); ++i)
        rank.use(i, rank.stream(i % 3));
      CHECK(rank.wait());
      for (std::size_t i = 0; i < rank.count(); ++i)
        CHECK(is_mean(rank.result(i), 2, repeat, i));
    }
  });
}

TEST_CASE("ready without a stream, with one of the host and with one of another device are refused in a sentence") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, {});
  dtrain::ddp::Accumulation accumulation = rank.reducer->accumulation();
  Step step = rank.reducer->begin();
  Step held(accumulation);  // as under no_sync()
  for (Step* const any : {&step, &held}) {
    CHECK_ERROR(any->ready(1), Errc::invalid_argument,
                "came without a stream, but the gradient is on cuda:0; call ready(i, stream)");
    CHECK_ERROR(any->ready(1, rank.reducer->gradient(1)), Errc::invalid_argument,
                "came without a stream, but the gradient is on cuda:0; call ready(i, view, stream)");
    CHECK_ERROR(any->ready(1, StreamHandle{}), Errc::unsupported, "came with a stream of host");
    StreamHandle other = rank.stream().handle();
    other.device.index = 7;
    CHECK_ERROR(any->ready(1, other), Errc::unsupported, "came with a stream of cuda:7");
  }
  StreamHandle per_thread = rank.stream().handle();
  per_thread.native = cudaStreamPerThread;
  for (Step* const any : {&step, &held})
    CHECK_ERROR(any->ready(1, per_thread), Errc::invalid_argument, "another stream in every thread");
  std::vector<float> host(rank.size(1));
  const dtrain::TensorView on_host = dtrain::tensor_view(host.data(), {1000});
  CHECK_ERROR(step.ready(1, on_host, rank.stream().handle()), Errc::invalid_argument, "came with f32 [1000] on host");
  for (std::size_t i = 0; i < rank.count(); ++i)
    step.ready(i, rank.stream().handle());
  step.finish();
  CHECK(rank.wait());
}

TEST_CASE("a gradient that is not on the device of the communication is refused") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  support::NcclRank nccl(std::make_shared<FakeJob>(1), 0, 1);
  std::vector<float> host(4);
  const dtrain::TensorView view = dtrain::tensor_view(host.data(), {4});
  const std::vector<dtrain::Parameter> parameters{{"w", view, view}};
  const auto construct = [&] {
    support::NcclReducer(std::move(nccl.communicator), nccl.stream.ref(), parameters,
                         dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters)), dtrain::DdpOptions{},
                         {nccl.latch, 0, "host-a", 10s, {}});
  };
  CHECK_ERROR(construct(), Errc::unsupported,
              "this reducer takes gradients on cuda:0, the device of its communication");
}

TEST_CASE("parameters without a gradient are named, or count as zeros where that is allowed") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  {
    CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, {});
    Step step = rank.reducer->begin();
    step.ready(0, rank.stream().handle());
    CHECK_ERROR(step.finish(), Errc::missing_gradient, "parameter 1 'p1', parameter 2 'p2', parameter 3 'p3'");
  }
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    const auto job = std::make_shared<FakeJob>(2);
    run_thread_ranks(2, [&](RankThread& self) {
      CudaTrainingRank rank(job, self.rank(), 2,
                            {.caps = {256, 8192}, .bound = bound, .options = {.allow_unused_parameters = true}});
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (std::size_t i = 0; i < rank.count(); ++i) {
          rank.prepare(i, 6.0F);
          support::enqueue_delay(rank.stream(), 1ms);
          rank.compute(i, rank.stream());  // stale where it is not announced
        }
        Step step = rank.reducer->begin();
        step.ready(0, rank.stream().handle());
        if (self.rank() == 0) step.ready(2, rank.stream().handle());
        step.finish();
        const float means[] = {6.0F, 0.0F, 3.0F, 0.0F};
        rank.use_all();
        CHECK(rank.wait());
        for (std::size_t i = 0; i < rank.count(); ++i)
          CHECK(rank.result(i) == std::vector<float>(rank.size(i), means[i]));
      }
    });
  }
}

TEST_CASE("a step that is destroyed unfinished, with the device busy, ends its reducer in time") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const auto job = std::make_shared<FakeJob>(2);
  const auto begin = std::chrono::steady_clock::now();
  std::barrier<> announced(2);
  run_thread_ranks(2, [&](RankThread& self) {
    CudaTrainingRank rank(job, self.rank(), 2, {.timeout = 5s});
    {
      Step step = rank.reducer->begin();
      if (self.rank() == 0) {  // its peer never takes part
        step.ready(3, rank.stream().handle());
        step.ready(2, rank.stream().handle());
      }
      announced.arrive_and_wait();
    }
    rank.reducer.reset();
  });
  CHECK(std::chrono::steady_clock::now() - begin < (support::is_sanitized ? 60s : 15s));
}

TEST_CASE("once the job has failed begin, ready and finish throw its cause") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const auto job = std::make_shared<FakeJob>(1);
  CudaTrainingRank rank(job, 0, 1, {});
  Step step = rank.reducer->begin();
  step.ready(0, rank.stream().handle());
  job->fail({dtrain::CauseKind::lost, 3, "host-b", "connection closed"});
  CHECK_THROWS_AS(step.ready(1, rank.stream().handle()), dtrain::PeerLost);
  CHECK_THROWS_AS(step.finish(), dtrain::PeerLost);
  CHECK_THROWS_AS((void)rank.reducer->begin(), dtrain::PeerLost);
}

TEST_CASE("where everything is recorded, the device's times of each bucket are") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  for (const bool everything : {false, true}) {
    CAPTURE(everything);
    CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, {.options = {.timeline = everything}});
    for (int repeat = 0; repeat < 3; ++repeat)
      rank.step();
    CHECK(rank.wait());
    std::size_t on_device = 0;
    dtrain::ddp::StepRecord last{};
    for (const dtrain::ddp::StepRecord& record : rank.reducer->recorder().records()) {
      if (record.event != dtrain::ddp::StepEvent::started && record.event != dtrain::ddp::StepEvent::reduced) continue;
      ++on_device;
      CHECK(record.time >= last.time);
      CHECK(record.step >= last.step);
      last = record;
    }
    CHECK(on_device == (everything ? 3 * 2 * rank.count() : 0));
  }
}

TEST_CASE("a second plan moves what bound gradients hold, and later steps reduce at the new places") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<int> moved{0};
  run_thread_ranks(2, [&](RankThread& self) {
    std::vector<dtrain::Parameter>* parameters = nullptr;
    CudaTrainingRank::Wanted wanted{.bound = true, .options = {.bucket_bytes = 0}};
    wanted.parts.rebuild = {[](const std::vector<std::size_t>&) {
                              return std::vector<std::size_t>{2, 0, 3, 1};
                            },
                            [&](std::size_t i, const dtrain::TensorView& view) {
                              moved += (*parameters)[i].gradient.data != view.data ? 1 : 0;
                              (*parameters)[i].gradient = view;
                            }};
    CudaTrainingRank rank(job, self.rank(), 2, wanted);
    parameters = &rank.parameters;
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (std::size_t i = 0; i < rank.count(); ++i)
        rank.prepare(i, value_of(self.rank(), repeat, i));
      Step step = rank.reducer->begin();
      for (const std::size_t i : {2u, 0u, 3u, 1u}) {
        rank.compute(i, rank.stream());
        step.ready(i, rank.stream().handle());
      }
      step.finish();
      rank.use_all();
      CHECK(rank.wait());
      for (std::size_t i = 0; i < rank.count(); ++i)
        CHECK(is_mean(rank.result(i), 2, repeat, i));
    }
  });
  CHECK(moved > 0);
}
