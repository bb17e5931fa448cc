// What it costs to look for gradients that are not finite, and to tell slow ranks and the places of many ranks.

#include <cstdio>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "bench/command.hpp"
#include "bench/ddp_step/least_training.hpp"
#include "bench/goal.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"
#include "dtrain/kernels/not_finite.hpp"
#include "dtrain/rendezvous/server_state/slow_ranks.hpp"
#include "dtrain/rendezvous/server_state/status_table.hpp"

namespace {

constexpr const char* bench_name = "doctor_bench";
constexpr const char* usage_line = "[--ranks=2] [--json=FILE]";
constexpr int turns = 8;           ///< of each kind; the first one is not counted
constexpr int steps_in_turn = 50;  ///< so that a wrapper measures its own steps 11 to 20, and not those of the others

using Clock = dtrain::Deadline::Clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Shapes {
  const char* name;
  std::size_t parameters;
  std::int64_t elements;
};

constexpr Shapes models[] = {{"1000 x 1 KiB", 1000, 256}, {"160 x 64 KiB", 160, 16384}, {"25 x 1 MiB", 25, 262144}};

/// One rank: rank 0 prints the means of its steps without a look, as by default, and with a look at every step.
int measure_rank(const dtrain::ProcessGroup<bench::Policy>& group) {
  using dtrain::OnNotFinite;
  for (const Shapes& shapes : models) {
    const std::vector<std::int64_t> sizes(shapes.parameters, shapes.elements);
    bench::LeastTraining trainings[] = {{sizes, group, {.on_not_finite = OnNotFinite::ignore}},
                                        {sizes, group, {.on_not_finite = OnNotFinite::log}},
                                        {sizes, group, {.on_not_finite = OnNotFinite::fail}}};
    std::vector<double> taken[3];
    for (int turn = 0; turn < turns; ++turn) {
      for (std::size_t kind = 0; kind < 3; ++kind) {
        for (int step = 0; step < steps_in_turn; ++step) {
          group.barrier();
          const auto begin = Clock::now();
          trainings[kind].step();
          if (turn > 0) taken[kind].push_back(seconds_since(begin));
        }
      }
    }
    const auto mean = [](const std::vector<double>& values) {  // the steps that are looked at are few
      return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    };
    if (group.rank() == 0) {
      std::printf("result %.9g %.9g %.9g\n", mean(taken[0]), mean(taken[1]), mean(taken[2]));
    }
  }
  return 0;
}

void measure_steps(int ranks, bench::ResultRows& rows) {
  const bench::CommandOutput output =
      bench::run_command({bench::own_path(), "--nproc-per-node=" + std::to_string(ranks), bench::launched_word},
                         dtrain::Deadline::after(std::chrono::minutes(5)));
  std::istringstream words(output.text);
  std::size_t model = 0;
  for (std::string word; words >> word;) {
    double ignoring = 0, by_default = 0, always = 0;
    if (word != "result" || model == std::size(models) || !(words >> ignoring >> by_default >> always)) continue;
    const Shapes& shapes = models[model++];
    const auto bytes = shapes.parameters * static_cast<std::uint64_t>(shapes.elements) * sizeof(float);
    const auto add = [&](const char* what, double seconds) {
      bench::Row row{bench_name,
                     "dtrain",
                     std::string(shapes.name) + ", " + what,
                     ranks,
                     1,
                     bytes,
                     seconds,
                     steps_in_turn * (turns - 1)};
      rows.add(row.with("ratio", seconds / ignoring));
    };
    add("ignore", ignoring);
    add("log", by_default);
    add("fail", always);
    bench::print_goal(std::string("a step of ") + shapes.name + " as by default in at most 1.005 of one without a look",
                      by_default <= 1.005 * ignoring, bench::text_of(by_default / ignoring, ""));
  }
  if (!output.succeeded || model != std::size(models)) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job of " + std::to_string(ranks) + " ranks failed");
  }
}

/// The kernel beside a copy of the same bytes.
void measure_kernel(bench::ResultRows& rows) {
  for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
    const std::vector<std::byte> from(bytes);
    std::vector<std::byte> to(bytes);
    std::vector<double> looking, copying;
    const int repeats = bytes > (std::size_t{1} << 20) ? 21 : 201;
    for (int i = 0; i < repeats; ++i) {
      auto begin = Clock::now();
      if (dtrain::kernels::first_not_finite(dtrain::DType::f32, from.data(), bytes / 4) != bytes / 4) {
        throw dtrain::Error(dtrain::Errc::protocol, "zeros are finite");
      }
      looking.push_back(seconds_since(begin));
      begin = Clock::now();
      std::memcpy(to.data(), from.data(), bytes);
      copying.push_back(seconds_since(begin));
    }
    const auto samples = static_cast<std::size_t>(repeats);
    const double copy = bench::median(copying);
    bench::Row look{bench_name, "dtrain", "a look", 1, 1, bytes, bench::median(looking), samples};
    rows.add(look.with("ratio", look.median_seconds / copy));
    rows.add({bench_name, "memcpy", "a copy", 1, 1, bytes, copy, samples});
  }
}

/// What the process does that has the statuses of 1,000 ranks.
void measure_statuses(bench::ResultRows& rows) {
  using namespace dtrain::rendezvous;
  constexpr int ranks = 1000;
  constexpr std::size_t samples = 20;
  std::vector<ReportedStatus> reported;
  for (int rank = 0; rank < ranks; ++rank) {
    RankStatus status;
    status.step = rank == 7 ? 811 : 812;
    status.channels = {{"ddp-0", "all_reduce (sum) of 8 f32", 9, rank == 7 ? 8U : 9U, 100, rank != 7}};
    reported.push_back({rank, "host" + std::to_string(rank / 8), status, ReportedStatus::Kind::current, {}});
  }
  std::vector<double> table, windows;
  SlowRanks slow(1.15);
  for (std::uint64_t i = 0; i < samples; ++i) {
    auto begin = Clock::now();
    if (status_table(reported).size() != 2) throw dtrain::Error(dtrain::Errc::protocol, "two places are two lines");
    table.push_back(seconds_since(begin));
    begin = Clock::now();
    for (const ReportedStatus& each : reported) {
      RankStatus status;
      status.computing = {1 + 50 * i, 50 + 50 * i, 50,        9'900'000, 10'000'000,
                          10'100'000, 7'000'000,   3'000'000, ranks,     0};
      static_cast<void>(slow.receive(each.rank, each.host, status, ranks, begin));
    }
    windows.push_back(seconds_since(begin));
  }
  rows.add({bench_name, "dtrain", "the table", ranks, 1, 0, bench::median(table), samples});
  rows.add({bench_name, "dtrain", "a window of each rank", ranks, 1, 0, bench::median(windows), samples});
  bench::print_goal("the table of 1,000 ranks in at most 10 ms", bench::median(table) <= 0.010,
                    bench::text_of(1e3 * bench::median(table), " ms"));
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return dtrain::run<bench::Policy>(
        argc, argv, [](dtrain::ProcessGroup<bench::Policy> group, dtrain::Arguments) { return measure_rank(group); });
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {2}, {});
    bench::ResultRows rows;
    measure_kernel(rows);
    measure_statuses(rows);
    for (const int ranks : options.ranks)
      measure_steps(ranks, rows);
    rows.write_json(options.json);
  });
}
