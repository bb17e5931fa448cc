// What a step costs beside the bytes: ready(i) on a bound gradient, and how often a rank's process allocates in steps
// 10 to 110, in all its threads but the control thread, which allocates what it sends to the store (ten times as often
// as usual).

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bench/command.hpp"
#include "bench/goal.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/reducer/allocation_watch.hpp"
#include "bench/result_rows.hpp"
#include "bench/shape_model.hpp"

namespace {

constexpr const char* bench_name = "reducer_bench";
constexpr const char* usage_line = "[--ranks=1,2] [--trace: print where allocations came from] [--json=FILE]";
constexpr std::size_t gradients = 2000;
constexpr std::int64_t elements = 512;
constexpr int first_watched_step = 10;
constexpr int end_of_watched_steps = 110;
constexpr int timed_steps = 100;
constexpr std::chrono::milliseconds pause{20};  // the watched steps take 2 s, so that there are heartbeats

/// One rank: its lines go to the benchmark.
int measure_rank(dtrain::ProcessGroup<bench::Policy> group, bool trace) {
  group
      .spawn([]() -> dtrain::Task<void> {
        bench::AllocationWatch::leave_out_this_thread();
        co_return;
      })
      .wait(dtrain::Deadline::after(std::chrono::seconds(10)));
  bench::ShapeModel model(std::vector<std::int64_t>(gradients, elements));
  dtrain::DistributedDataParallel ddp{model, group};
  std::vector<double> seconds;
  seconds.reserve(timed_steps);
  const auto step = [&] {
    double taken = 0;
    ddp.backward([&](dtrain::Ready ready) {
      const auto begin = dtrain::Deadline::Clock::now();
      model.announce(ready);
      taken = std::chrono::duration<double>(dtrain::Deadline::Clock::now() - begin).count();
    });
    return taken;
  };
  for (std::size_t i = 0; i < gradients; ++i) {
    for (float& value : model.gradient(i)) {
      value = static_cast<float>(group.rank() + 1);
    }
  }
  for (int i = 0; i < end_of_watched_steps; ++i) {
    if (i == first_watched_step) {
      bench::AllocationWatch::begin(trace);
    }
    step();
    std::this_thread::sleep_for(pause);
  }
  const std::size_t allocations = bench::AllocationWatch::end();
  bench::AllocationWatch::print_traces();
  for (int i = 0; i < timed_steps; ++i) {
    seconds.push_back(step());
  }
  const float average = static_cast<float>(group.world_size() + 1) / 2;  // an average of averages is the same
  for (std::size_t i = 0; i < gradients; ++i) {
    for (const float value : model.gradient(i)) {
      if (std::abs(value - average) > 1e-6F) {
        throw dtrain::Error(dtrain::Errc::protocol, "a reduced gradient is wrong");
      }
    }
  }
  std::printf("result %.9g %zu %zu\n", bench::median(seconds) / gradients, allocations, ddp.statistics().buckets);
  return 0;
}

void measure(int ranks, bool trace, bench::ResultRows& rows) {
  std::vector<std::string> command{bench::own_path(), "--nproc-per-node=" + std::to_string(ranks),
                                   bench::launched_word};
  if (trace) {
    command.push_back("--trace");
  }
  const bench::CommandOutput output =
      bench::run_command(std::move(command), dtrain::Deadline::after(std::chrono::seconds(120)));
  double seconds = 0;
  std::size_t allocations = 0, buckets = 0;
  int seen = 0;
  std::istringstream words(output.text);
  for (std::string word; words >> word;) {
    double of_rank = 0;
    std::size_t allocations_of_rank = 0;
    if (word == "result" && words >> of_rank >> allocations_of_rank >> buckets) {
      seconds = std::max(seconds, of_rank);
      allocations += allocations_of_rank;
      ++seen;
    }
  }
  if (!output.succeeded || seen != ranks) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job of " + std::to_string(ranks) + " ranks failed");
  }
  bench::Row row{bench_name, "dtrain", "ready(i)", ranks, 1, elements * sizeof(float), seconds, timed_steps};
  rows.add(row.with("nanoseconds", seconds * 1e9)
               .with("gradients", static_cast<double>(gradients))
               .with("buckets", static_cast<double>(buckets))
               .with("allocations", static_cast<double>(allocations)));
  bench::print_goal("ready(i) on a bound gradient in less than 50 ns", seconds < 50e-9,
                    bench::text_of(seconds * 1e9, " ns"));
  bench::print_goal("no allocation in steps 10 to 110", allocations == 0,
                    std::to_string(allocations) + " in the ranks' processes");
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return dtrain::run<bench::Policy>(argc, argv,
                                      [](dtrain::ProcessGroup<bench::Policy> group, dtrain::Arguments arguments) {
                                        return measure_rank(std::move(group), arguments.size() > 2);
                                      });
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {1, 2}, {"--trace"});
    ::setenv("DTRAIN_LIVENESS_SECONDS", "0.5", 0);
    bench::ResultRows rows;
    for (const int ranks : options.ranks) {
      measure(ranks, options.trace, rows);
    }
    rows.write_json(options.json);
  });
}
