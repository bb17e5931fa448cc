// What a sharded optimizer costs and saves: a step with ShardedOptimizer and AdamW, in both stages, beside one of plain
// backward() after which every rank runs AdamW on all weights. In shared memory on published models, whose backward
// pass only announces the gradients; and on two virtual hosts joined at 1 Gbit/s with the backward pass of
// overlap_bench.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/command.hpp"
#include "bench/ddp_step/models.hpp"
#include "bench/goal.hpp"
#include "bench/hosts/policies.hpp"
#include "bench/hosts/virtual_job.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/overlap/overlap_rank.hpp"
#include "bench/result_rows.hpp"
#include "bench/sharded/shard_rank.hpp"
#include "dtrain/core/process/control_groups.hpp"

namespace {

constexpr const char* bench_name = "sharded_bench";
constexpr const char* usage_line = "[--ranks=2,4] [--samples=N] [--json=FILE]";
constexpr const char* overlapped = "layers";  ///< the model of overlap_bench, with its computing

/// Its last arguments are the number of samples and the model.
template <class P>
int run_rank(int argc, char** argv) {
  return dtrain::run<P>(argc, argv, [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    const int samples = bench::positive("samples", arguments[arguments.size() - 2]);
    const std::string model = arguments.back();
    const std::vector<std::int64_t> sizes = model == overlapped
                                                ? std::vector<std::int64_t>(bench::layers, bench::layer_elements)
                                                : bench::model_named(model).sizes;
    bench::ShardRank<P>(std::move(group), sizes, model == overlapped).measure(samples);
    return 0;
  });
}

int run_launched(int argc, char** argv) {
  if (bench::is_launched_with("shared_memory", argc, argv)) {
    return run_rank<bench::Policy>(argc, argv);
  }
  return bench::run_on_named_backend(bench_name, argc, argv,
                                     []<class P>(int count, char** words) { return run_rank<P>(count, words); });
}

/// @param most the goal: how many times the other step's time, less the computing
void add_rows(bench::Told& told, const std::string& backend, const std::string& model, std::uint64_t bytes, int ranks,
              int hosts, double most, bench::ResultRows& rows) {
  const double whole = bench::median(told.seconds["whole"]);
  const double sharded = bench::median(told.seconds["sharded"]);
  const double state = *std::ranges::max_element(told.facts["state"]);
  const auto all = static_cast<double>(bytes);
  const double formula = 2.0 * all / ranks;
  const auto add_row = [&](const char* name, double seconds, double state_bytes, double gradient_bytes) {
    bench::Row row{bench_name, "dtrain", name, ranks, hosts, bytes, seconds, told.seconds["whole"].size()};
    rows.add(row.with("backend", backend)
                 .with("model", model)
                 .with("ratio", seconds / whole)
                 .with("state_bytes", state_bytes)
                 .with("gradient_bytes", gradient_bytes));
  };
  const double gradients = *std::ranges::max_element(told.facts["gradients"]);
  const double two_buckets = *std::ranges::max_element(told.facts["arena"]);
  add_row("AdamW on every rank", whole, 2 * all, all);
  add_row("stage 1", sharded, state, all);
  const double divided = bench::median(told.seconds["divided"]);
  add_row("stage 2", divided, state, gradients);
  bench::print_goal(bench::text_of(most, " times the step with AdamW on every rank, at most"), sharded <= most * whole,
                    bench::text_of(sharded / whole, " times"));
  if (told.seconds["freeing"].empty()) {
    const double owning = bench::median(told.seconds["owning"]);
    add_row("AdamW on every rank, own gradients", owning, 2 * all, 2 * all);
    bench::print_goal("stage 2, of a whole one whose model has gradients of its own too", divided <= most * owning,
                      bench::text_of(divided / owning, " times"));
  } else {
    const double freeing = bench::median(told.seconds["freeing"]);
    add_row("stage 2, early_update", freeing, state, gradients);
    bench::print_goal("stage 2 with early_update", freeing <= most * whole, bench::text_of(freeing / whole, " times"));
  }
  bench::print_goal("a rank's state at most 1.02 times 8 bytes for each weight, divided by the ranks",
                    state <= 1.02 * formula, bench::text_of(state / formula, " times"));
  bench::print_goal(
      "in stage 2 its gradients at most 1.02 times 4 bytes for each, divided by the ranks, and "
      "the two largest buckets",
      gradients <= 1.02 * (all / ranks + two_buckets),
      bench::text_of(gradients / (all / ranks + two_buckets), " times"));
}

void measure_one_host(const bench::Options& options, bench::ResultRows& rows) {
  const int samples = options.samples > 0 ? options.samples : 9;
  for (const int ranks : options.ranks.empty() ? std::vector<int>{2, 4} : options.ranks) {
    for (const bench::ModelShapes& model : {bench::resnet50(), bench::gpt2()}) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(model.elements()) * sizeof(float);
      if (static_cast<std::uint64_t>(ranks) * bytes * 19 > dtrain::available_memory_bytes()) {
        std::printf("%d ranks with %s: left out, because the host has too little memory\n", ranks, model.name.c_str());
        continue;
      }
      const bench::CommandOutput output =
          bench::run_command({bench::own_path(), "--nproc-per-node=" + std::to_string(ranks), bench::launched_word,
                              "shared_memory", std::to_string(samples), model.name},
                             dtrain::Deadline::after(std::chrono::seconds(300)));
      bench::Told told = bench::Told::from(output.text);
      if (!output.succeeded || told.facts["state"].size() != static_cast<std::size_t>(ranks)) {
        throw dtrain::Error(dtrain::Errc::protocol, "a job of " + std::to_string(ranks) + " ranks failed");
      }
      add_rows(told, "shared_memory", model.name, bytes, ranks, 1, 1.05, rows);
    }
  }
}

void measure_two_hosts(const bench::Options& options, [[maybe_unused]] bench::ResultRows& rows) {
  if (!bench::VirtualJob::possible()) {
    std::printf("virtual hosts cannot be made here: nothing was measured between hosts\n");
    return;
  }
  const std::string samples = std::to_string(options.samples > 0 ? options.samples : 5);
  const bench::VirtualHosts hosts;
  const bench::VirtualJob job{hosts};
#if DTRAIN_WITH_MPI
  bench::Told mpi = job.run_mpi({"mpi", samples, overlapped});
  add_rows(mpi, "mpi", overlapped, bench::all_bytes, hosts.ranks(), hosts.hosts, 1, rows);
#else
  std::printf("dtrain on Mpi: built without MPI\n");
#endif
#if DTRAIN_WITH_GLOO
  bench::Told gloo = job.run_per_node({"gloo", samples, overlapped});
  add_rows(gloo, "gloo", overlapped, bench::all_bytes, hosts.ranks(), hosts.hosts, 1, rows);
#else
  std::printf("dtrain on Gloo: built without Gloo\n");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return run_launched(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {}, {});
    bench::ResultRows rows;
    measure_one_host(options, rows);
    measure_two_hosts(options, rows);
    rows.write_json(options.json);
  });
}
