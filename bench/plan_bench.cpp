// What DdpOptions::plan gains: the step with a measured plan beside steps with buckets of each size of a sweep, in
// shared memory, on two virtual hosts joined at 1 Gbit/s, and on two of two ranks each joined at 100 Mbit/s.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "bench/command.hpp"
#include "bench/goal.hpp"
#include "bench/hosts/policies.hpp"
#include "bench/hosts/virtual_job.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/plan/plan_rank.hpp"
#include "bench/result_rows.hpp"

namespace {

constexpr const char* bench_name = "plan_bench";
constexpr const char* usage_line = "[--samples=N] [--json=FILE]";
constexpr double of_the_best = 1.05;
constexpr double of_the_longer = 1.05;

/// What joins the ranks, and what they compute.
struct Link {
  const char* name;
  bench::VirtualHosts hosts;
  bench::PlanModel model;
};

Link shared_memory() {
  return {"shared memory", {1, 2, "", 0}, {50, std::int64_t{512} * 1024, std::chrono::microseconds(1000)}};
}
Link gigabit() {
  return {"1 Gbit/s", {}, {}};
}
Link two_by_two() {
  return {"100 Mbit/s", {2, 2, "100mbit", 12.5e6}, {50, std::int64_t{32} * 1024, std::chrono::microseconds(18'000)}};
}

/// Its arguments are the backend's name, the number of samples and the link's name.
template <class P>
int run_rank(int argc, char** argv) {
  return dtrain::run<P>(argc, argv, [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    const int samples = bench::positive("samples", arguments[arguments.size() - 2]);
    for (const Link& link : {shared_memory(), gigabit(), two_by_two()}) {
      if (std::string(arguments.back()) == link.name) {
        bench::PlanRank<P>(std::move(group), link.model).measure(samples);
        return 0;
      }
    }
    return 2;
  });
}

int run_launched(int argc, char** argv) {
  if (bench::is_launched_with("shared_memory", argc, argv)) {
    return run_rank<bench::Policy>(argc, argv);
  }
#if DTRAIN_WITH_GLOO
  if (bench::is_launched_with("gloo", argc, argv)) {
    return run_rank<bench::GlooPolicy>(argc, argv);
  }
#endif
  std::fprintf(stderr, "%s: this program was built without the backend that it was started with\n", bench_name);
  return 2;
}

/// The rows of a link, and its goals.
void report(const Link& link, const char* backend, bench::Told told, bool keeps_up, bench::ResultRows& rows) {
  const auto add = [&](const std::string& kind, const std::string& plan) {
    const double step = bench::median(told.seconds[kind]);
    bench::Row row{bench_name,       "dtrain",           "step", link.hosts.ranks(),
                   link.hosts.hosts, link.model.bytes(), step,   told.seconds[kind].size()};
    rows.add(row.with("backend", backend)
                 .with("link", link.name)
                 .with("plan", plan)
                 .with("buckets", bench::median(told.facts[kind + "/buckets"])));
    return step;
  };
  const double measured = add("step/measured", "measured");
  double best = std::numeric_limits<double>::max();
  for (const dtrain::ddp::BucketCaps& caps : link.model.sweep()) {
    best = std::min(best, add(bench::sweep_kind(caps),
                              std::to_string(caps.first_bucket_bytes) + " " + std::to_string(caps.bucket_bytes)));
  }
  bench::print_goal(bench::text_of(of_the_best, " of the best step of the sweep, at most"),
                    measured <= of_the_best * best, bench::text_of(measured / best, ""));
  if (keeps_up) {
    const double longer = std::max(link.model.compute_seconds(), bench::median(told.seconds["communication"]));
    bench::print_goal(bench::text_of(of_the_longer, " of the longer of computing and communicating, at most"),
                      measured <= of_the_longer * longer, bench::text_of(measured / longer, ""));
  }
}

void measure_links(const bench::Options& options, bench::ResultRows& rows) {
  const std::string samples = std::to_string(options.samples > 0 ? options.samples : 5);
  const Link memory = shared_memory();
  const bench::CommandOutput output = bench::run_command(
      {bench::own_path(), "--nproc-per-node=2", bench::launched_word, "shared_memory", samples, memory.name},
      dtrain::Deadline::after(std::chrono::seconds(300)));
  if (!output.succeeded) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job in shared memory failed");
  }
  report(memory, "shared_memory", bench::Told::from(output.text), false, rows);
  if (!bench::VirtualJob::possible()) {
    std::printf("virtual hosts cannot be made here: nothing was measured between hosts\n");
    return;
  }
#if DTRAIN_WITH_GLOO
  for (const Link& link : {gigabit(), two_by_two()}) {
    const bench::VirtualJob job{link.hosts};
    report(link, "gloo", job.run_per_node({"gloo", samples, link.name}), link.hosts.ranks_per_host == 1, rows);
  }
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
    measure_links(options, rows);
    rows.write_json(options.json);
  });
}
