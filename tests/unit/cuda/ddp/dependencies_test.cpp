// ctest: TIMEOUT 240
#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace {

constexpr const char* scenario_name =
    "one step of two ranks of whose waits one may be left out";  // no comma: doctest splits there
constexpr const char* wait_variable = "DTRAIN_TEST_IGNORED_WAIT";
constexpr const char* bound_variable = "DTRAIN_TEST_BOUND";

bool is_scenario() {
  return std::getenv(wait_variable) != nullptr;
}

/// Starts this program with the scenario alone.
support::Result run_scenario(int ignored_wait, bool bound) {
  return support::run("/proc/self/exe", {"--no-skip", std::string("--test-case=") + scenario_name},
                      {{wait_variable, std::to_string(ignored_wait)}, {bound_variable, bound ? "1" : "0"}});
}

int waits_in(const std::string& output) {
  const std::string mark = "waits of the step: ";
  const std::size_t place = output.find(mark);
  return place == std::string::npos ? -1 : std::atoi(output.c_str() + place + mark.size());
}

}  // namespace

// Two streams produce the gradients of two buckets. In the step after it, other memory has those of the first bucket,
// which nothing has read meanwhile: a third stream produces them, without an order behind the first step.
TEST_CASE("one step of two ranks of whose waits one may be left out" * doctest::skip(!is_scenario())) {
  REQUIRE(support::enough_devices(2));
  const auto job = std::make_shared<FakeJob>(2);
  const bool bound = std::string(std::getenv(bound_variable)) == "1";
  std::barrier<> together(2);
  run_thread_ranks(2, [&](RankThread& self) {
    CudaTrainingRank rank(job, self.rank(), 2,
                          {.sizes = {20, 30, 20, 10}, .caps = {256, 256}, .bound = bound, .streams = 3});
    REQUIRE(rank.reducer->plan().buckets.at(0).parameters == std::vector<std::size_t>{3, 2});
    std::vector<support::DeviceBuffer> others;
    for (std::size_t i = 0; i < rank.count(); ++i) {
      rank.prepare(i, 3.0F);
      others.push_back(support::on_device(std::vector<float>(rank.size(i), 0.0F)));
    }
    const auto one_step = [&] {
      Step step = rank.reducer->begin();
      for (std::size_t i = rank.count(); i-- > 0;) {
        rank.compute(i, rank.stream(i % 2));
        step.ready(i, rank.stream(i % 2).handle());
      }
      step.finish();
    };
    one_step();  // it makes streams, which must wait for more
    CHECK(rank.wait());
    together.arrive_and_wait();
    if (self.rank() == 0) emulation::ignore_wait(std::atoi(std::getenv(wait_variable)));
    together.arrive_and_wait();
    one_step();
    for (std::size_t i = 0; i < 2; ++i)
      rank.use(i, rank.stream(i % 2));
    together.arrive_and_wait();
    if (self.rank() == 0) std::printf("waits of the step: %d\n", emulation::waits());
    together.arrive_and_wait();
    Step next = rank.reducer->begin();
    for (std::size_t i = rank.count(); i-- > 0;) {
      const bool is_other = i >= 2;
      const support::StreamRef stream = rank.stream(is_other ? 2 : i % 2);
      dtrain::TensorView gradient = rank.parameters[i].gradient;
      if (is_other) gradient.data = others[i].data();
      rank.compute(i, stream, static_cast<std::byte*>(gradient.data));
      next.ready(i, gradient, stream.handle());
    }
    next.finish();
    for (std::size_t i = 0; i < rank.count(); ++i)
      rank.use(i, rank.stream(i % 2));
    CHECK(rank.wait());
    together.arrive_and_wait();
  });
}

TEST_CASE("ThreadSanitizer reports a race for each event dependency that is left out, and none with all in place") {
  if (!DTRAIN_THREAD_SANITIZER) return dtrain_test::skip("only ThreadSanitizer sees races");
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    const support::Result whole = run_scenario(0, bound);
    INFO(whole.output);
    INFO(whole.error);
    CHECK(whole.exit_code == 0);
    const int waits = waits_in(whole.output);
    REQUIRE(waits >= 2 * (2 + 2 + 2));  // on each rank: the buckets' producers, and finish()
    for (int ignored = 1; ignored <= waits; ++ignored) {
      CAPTURE(ignored);
      const support::Result lacking = run_scenario(ignored, bound);
      CHECK(lacking.exit_code == 66);
      CHECK(lacking.error.find("ThreadSanitizer: data race") != std::string::npos);
    }
  }
}

#endif  // DTRAIN_EMULATED_CUDA
