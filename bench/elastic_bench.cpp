// How long an elastic job of four ranks pauses: from the kill of a rank to the others' next step, and while a worker
// joins; how long a formation of 1,000 workers takes; and what commit() costs.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/child_process.hpp"
#include "bench/command.hpp"
#include "bench/elastic/board.hpp"
#include "bench/elastic/simulated_formation.hpp"
#include "bench/goal.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"
#include "dtrain/dtrain.hpp"

namespace {

using bench::Board;
using bench::Row;
using bench::SharedBoard;
using bench::WorkerFacts;

constexpr const char* bench_name = "elastic_bench";
constexpr const char* usage_line = "[--ranks=4] [--samples=N] [--only=PART_OF_A_NAME] [--json=FILE]";
constexpr std::uint64_t warm_steps = 4;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(dtrain::Deadline::Clock::now().time_since_epoch())
      .count();
}

/// What is measured: a model of so many bytes, further state, and further memory that each rank has touched.
struct Scenario {
  const char* what = "";
  std::size_t model_bytes = 0;
  std::size_t state_bytes = 0;
  std::size_t memory_bytes = 0;
  bool is_replaced = false;  ///< another worker takes the lost one's place: its join is measured
};

struct Model {
  explicit Model(std::size_t bytes) : weights(bytes / sizeof(float)), gradients(bytes / sizeof(float)) {}
  std::vector<dtrain::Parameter> parameters() {
    return {{"weights", dtrain::tensor_view(weights), dtrain::tensor_view(gradients)}};
  }
  std::vector<float> weights;
  std::vector<float> gradients;
};

/// What a worker does: FILE, the bytes of the model, of the further state and of the further memory stand behind the
/// word.
int work(dtrain::Elastic<bench::Policy> job, dtrain::Arguments arguments) {
  const auto word = std::find_if(arguments.begin(), arguments.end(),
                                 [](const char* each) { return std::strcmp(each, bench::launched_word) == 0; });
  const SharedBoard board(word[2]);
  const auto bytes = [&](int position) { return static_cast<std::size_t>(std::strtoull(word[position], nullptr, 10)); };
  WorkerFacts& facts = board->workers.at(static_cast<std::size_t>(job.local_rank()));
  Model model(bytes(3));
  std::vector<float> state(bytes(4) / sizeof(float), 1);
  const std::vector<char> memory(bytes(5), 1);
  job.keep(dtrain::parameter_values(model.parameters()));
  if (!state.empty()) job.keep({{"state", dtrain::tensor_view(state)}});
  facts.process = ::getpid();
  return job.train([&](dtrain::ProcessGroup<bench::Policy> group) {
    dtrain::DistributedDataParallel ddp{model, group};
    if (group.world_size() == 1) {  // commit() alone
      constexpr int count = 1000000;
      const std::int64_t begin = now();
      for (int i = 0; i < count; ++i) {
        job.commit([&] { model.weights[0] = static_cast<float>(i); });
      }
      board->commit_nanoseconds = std::max<std::int64_t>(1, (now() - begin) / count);
      return;
    }
    for (bool is_first = true;; is_first = false) {
      ddp.backward([](dtrain::Ready ready) { ready(0); });
      job.commit([&] { model.weights[0] += 1; });
      const std::int64_t time = now();
      if (is_first) {
        facts.last_commit_before = facts.last_commit.load();
        facts.first_commit = time;
      }
      facts.last_commit = time;
      facts.steps = job.step();
      facts.attempt = job.attempt();
    }
  });
}

class Job {
 public:
  Job(const Scenario& scenario, int ranks, int restarts)
      : ranks_(ranks), process_([&](const bench::Channel&) {
          std::vector<std::string> words{bench::own_path(),
                                         "--nproc-per-node=" + std::to_string(ranks),
                                         "--min-ranks=1",
                                         "--max-restarts=" + std::to_string(restarts),
                                         bench::launched_word,
                                         "elastic",
                                         board_.path(),
                                         std::to_string(scenario.model_bytes),
                                         std::to_string(scenario.state_bytes),
                                         std::to_string(scenario.memory_bytes)};
          std::vector<char*> pointers;
          for (std::string& each : words) {
            pointers.push_back(each.data());
          }
          pointers.push_back(nullptr);
          ::close(STDERR_FILENO);  // the losses are the benchmark's
          ::execv(pointers[0], pointers.data());
          throw dtrain::errno_error("starting this program again");
        }) {}

  Board& board() { return *board_; }

  template <class Done>
  void wait_until(const char* what, Done done) {
    const dtrain::Deadline deadline = dtrain::Deadline::after(std::chrono::seconds(60));
    while (!done()) {
      if (deadline.passed()) throw dtrain::Error(dtrain::Errc::timeout, std::string("waiting until ") + what);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  /// Whether all ranks but those in `places` behind the last are in an attempt, and have made steps in it.
  bool has_steps(int places, std::uint64_t attempt, std::uint64_t steps) {
    return std::all_of(board_->workers.begin(), board_->workers.begin() + places,
                       [&](const WorkerFacts& each) { return each.attempt >= attempt && each.steps >= steps; });
  }

  /// @returns the seconds from the kill of the last rank to the others' next commit, or, where another one takes its
  /// place, from their last commit before it joins to the next; each less one step
  double pause(const Scenario& scenario) {
    wait_until("the ranks have trained", [&] { return has_steps(ranks_, 1, warm_steps); });
    const std::int64_t begin = now();
    const std::uint64_t first = board_->workers[0].steps;
    wait_until("some steps are measured", [&] { return board_->workers[0].steps >= first + warm_steps; });
    const double step = static_cast<double>(now() - begin) / static_cast<double>(board_->workers[0].steps - first);
    WorkerFacts& victim = board_->workers[static_cast<std::size_t>(ranks_ - 1)];
    const std::int64_t killed = now();
    if (::kill(victim.process, SIGKILL) != 0) throw dtrain::errno_error("killing a worker");
    wait_until("the others go on", [&] { return has_steps(ranks_ - 1, 2, 0); });
    if (scenario.is_replaced) {
      wait_until("another worker has joined",
                 [&] { return victim.attempt >= 2 && has_steps(ranks_ - 1, victim.attempt, 0); });
    }
    std::int64_t last = 0;
    for (int i = 0; i < ranks_ - 1; ++i) {
      const WorkerFacts& each = board_->workers[static_cast<std::size_t>(i)];
      last = std::max(last, each.first_commit - (scenario.is_replaced ? each.last_commit_before.load() : killed));
    }
    return (static_cast<double>(last) - step) * 1e-9;
  }

 private:
  int ranks_;
  SharedBoard board_;
  bench::ChildProcess process_;
};

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

/// Seconds that the median, 99 of 100 and 999 of 1,000 may take; 0: there is no goal.
struct Goal {
  double median = 0;
  double p99 = 0;
  double p999 = 0;
};

void add(bench::ResultRows& rows, Row row, const std::vector<double>& seconds, const Goal& goal) {
  const bool has_p99 = seconds.size() >= 100;
  const bool has_p999 = seconds.size() >= 1000;
  row.median_seconds = bench::median(seconds);
  row.samples = seconds.size();
  row.with("p90_seconds", quantile(seconds, 0.9));
  if (has_p99) row.with("p99_seconds", quantile(seconds, 0.99));
  if (has_p999) row.with("p999_seconds", quantile(seconds, 0.999));
  row.with("max_seconds", quantile(seconds, 1));
  rows.add(row);
  const auto print = [&](const char* which, double most, double measured) {
    bench::print_goal(row.what + ": at most " + bench::text_of(1e3 * most, " ms") + which, measured <= most,
                      bench::text_of(1e3 * measured, " ms"));
  };
  print(" in the median", goal.median, row.median_seconds);
  if (has_p99 && goal.p99 > 0) print(" in 99 of 100", goal.p99, quantile(seconds, 0.99));
  if (has_p999 && goal.p999 > 0) print(" in 999 of 1,000", goal.p999, quantile(seconds, 0.999));
}

void measure(bench::ResultRows& rows, const Scenario& scenario, int ranks, int samples, const Goal& goal) {
  std::vector<double> pauses;
  for (int i = 0; i < samples; ++i) {
    Job job(scenario, ranks, scenario.is_replaced ? 1 : 0);
    pauses.push_back(job.pause(scenario));
  }
  Row row{bench_name, "dtrain", scenario.what, ranks};
  row.bytes = scenario.model_bytes + scenario.state_bytes;
  add(rows, std::move(row), pauses, goal);
}

void measure_formation(bench::ResultRows& rows, int samples) {
  constexpr int workers = 1000;
  bench::SimulatedFormation formation(workers);
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    times.push_back(formation.form_again());
  }
  add(rows, Row{bench_name, "dtrain", "formation, 1,000 workers", workers}, times, {0.5});
}

void measure_commit(bench::ResultRows& rows) {
  Job alone({"commit", 1000000}, 1, 0);
  alone.wait_until("commit() is measured", [&] { return alone.board().commit_nanoseconds != 0; });
  const auto nanoseconds = static_cast<double>(alone.board().commit_nanoseconds.load());
  rows.add({bench_name, "dtrain", "commit()", 1, 1, 0, nanoseconds * 1e-9, 1000000});
  bench::print_goal("commit() takes below 50 ns", nanoseconds < 50, bench::text_of(nanoseconds, " ns"));
}

void run(const bench::Options& options) {
  constexpr std::size_t mega = 1000000;
  constexpr std::size_t memory = std::size_t{2} << 30;
  const std::vector<std::pair<Scenario, Goal>> scenarios{
      {{"kill, 1 MB", mega}, {0.06, 0.2}},
      {{"kill, 100 MB", 100 * mega}, {0.5, 1, 2}},
      {{"kill, 100 MB, 2 GiB a rank", 100 * mega, 0, memory}, {0.5, 1, 2}},
      {{"join, 300 MB of state", mega, 299 * mega, 0, true}, {0.7}}};
  const int samples = options.samples > 0 ? options.samples : 20;
  const auto is_wanted = [&](const std::string& name) { return name.find(options.only) != std::string::npos; };
  bench::ResultRows rows;
  for (const int ranks : options.ranks) {
    for (const auto& [scenario, goal] : scenarios) {
      if (!is_wanted(scenario.what)) continue;
      const std::size_t needed = (static_cast<std::size_t>(ranks) + 1) * scenario.memory_bytes;
      if (dtrain::available_memory_bytes() < needed) {
        std::printf("%s: left out, this host has too little memory\n", scenario.what);
        continue;
      }
      measure(rows, scenario, ranks, samples, goal);
    }
  }
  if (is_wanted("formation, 1,000 workers")) measure_formation(rows, samples);
  if (is_wanted("commit()")) measure_commit(rows);
  rows.write_json(options.json);
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched_with("elastic", argc, argv)) return dtrain::run<bench::Policy>(argc, argv, work);
  return bench::run_benchmark(bench_name, usage_line, argc, argv,
                              [&] { run(bench::Options::parse(argc, argv, {4}, {"--only"})); });
}
