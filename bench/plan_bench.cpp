// What DdpOptions::plan gains: the step with a measured plan beside steps with buckets of each size of a sweep, in
// shared memory, on two virtual hosts joined at 1 Gbit/s, and on two of two ranks each joined at 1 Gbit/s and at 100
// Mbit/s. With each topology among whose ways to reduce the plan chooses: there Flat, Hierarchical, and Hierarchical
// with 16 bits between the hosts; elsewhere Flat.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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

#if DTRAIN_WITH_GLOO
template <class WireType>
using Hierarchical = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Gloo,
                                    dtrain::topology::Hierarchical<dtrain::backend::SharedMemory, WireType>>;
#endif

/// What joins the ranks, and what they compute.
struct Link {
  const char* name;
  bench::VirtualHosts hosts;
  bench::PlanModel model;

  bool has_topologies() const noexcept { return hosts.hosts > 1 && hosts.ranks_per_host > 1; }
};

std::vector<Link> links() {
  return {{"shared memory", {1, 2, "", 0}, {50, std::int64_t{512} * 1024, std::chrono::microseconds(1000)}},
          {"1 Gbit/s", {}, {}},
          {"2 x 2, 1 Gbit/s", {2, 2, "1gbit", 125e6}, {}},
          {"2 x 2, 100 Mbit/s",
           {2, 2, "100mbit", 12.5e6},
           {50, std::int64_t{32} * 1024, std::chrono::microseconds(18'000)}}};
}

/// A policy, by the word that starts its ranks, and the ways to reduce that its plan chooses among.
struct Topology {
  const char* word;
  const char* name;
  std::vector<const char*> variants;
};

std::vector<Topology> topologies(const Link& link) {
  if (link.hosts.hosts == 1) return {{"shared_memory", "Flat", {"Flat"}}};
  if (link.hosts.ranks_per_host == 1) return {{"gloo", "Flat", {"Flat"}}};
  return {{"gloo", "Flat", {"Flat"}},
          {"gloo_hierarchical", "Hierarchical", {"Hierarchical", "Flat"}},
          {"gloo_wire", "Hierarchical in 16 bits", {"Hierarchical in 16 bits", "Hierarchical", "Flat"}}};
}

/// Its arguments are the policy's word, the number of samples and the link's name.
template <class P>
int run_rank(int argc, char** argv) {
  return dtrain::run<P>(argc, argv, [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    const int samples = bench::positive("samples", arguments[arguments.size() - 2]);
    for (const Link& link : links()) {
      if (std::string(arguments.back()) == link.name) {
        bench::PlanRank<P>(std::move(group), link.model, link.has_topologies()).measure(samples);
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
  if (bench::is_launched_with("gloo_hierarchical", argc, argv)) {
    return run_rank<Hierarchical<dtrain::wire::Same>>(argc, argv);
  }
  if (bench::is_launched_with("gloo_wire", argc, argv)) {
    return run_rank<Hierarchical<dtrain::wire::Bf16>>(argc, argv);
  }
#endif
  std::fprintf(stderr, "%s: this program was built without the backend that it was started with\n", bench_name);
  return 2;
}

/// The steps of a link with one policy.
class Report {
 public:
  Report(const Link& link, Topology topology, bench::Told told, bench::ResultRows& rows)
      : link_(link), topology_(std::move(topology)), told_(std::move(told)) {
    const auto add = [&](const std::string& kind, const std::string& plan, const std::string& way) {
      const double step = bench::median(told_.seconds[kind]);
      bench::Row row{bench_name,
                     "dtrain",
                     "step",
                     link_.hosts.ranks(),
                     link_.hosts.hosts,
                     link_.model.bytes(),
                     step,
                     told_.seconds[kind].size()};
      rows.add(row.with("backend", link_.hosts.hosts > 1 ? "gloo" : "shared_memory")
                   .with("link", link_.name)
                   .with("topology", topology_.name)
                   .with("plan", plan)
                   .with("buckets", bench::median(told_.facts[kind + "/buckets"]))
                   .with("way", way));
      return step;
    };
    const auto variant = static_cast<std::size_t>(bench::median(told_.facts["step/measured/variant"]));
    measured_ = add("step/measured", "measured", topology_.variants.at(variant));
    for (const dtrain::ddp::BucketCaps& caps : link_.model.sweep(link_.has_topologies())) {
      best_ = std::min(best_, add(bench::sweep_kind(caps),
                                  std::to_string(caps.first_bucket_bytes) + " " + std::to_string(caps.bucket_bytes),
                                  topology_.variants.front()));
    }
  }

  double best() const noexcept { return best_; }
  const Topology& topology() const noexcept { return topology_; }

  /// @param best of the sweeps of all ways that the policy has
  void print_goal(double best) const {
    bench::print_goal(
        std::string(topology_.name) + ": " + bench::text_of(of_the_best, " of the best step of the sweep, at most"),
        measured_ <= of_the_best * best, bench::text_of(measured_ / best, ""));
  }
  void print_goal_of_the_longer() {
    const double longer = std::max(link_.model.compute_seconds(), bench::median(told_.seconds["communication"]));
    bench::print_goal(bench::text_of(of_the_longer, " of the longer of computing and communicating, at most"),
                      measured_ <= of_the_longer * longer, bench::text_of(measured_ / longer, ""));
  }

 private:
  const Link& link_;
  Topology topology_;
  bench::Told told_;
  double measured_ = 0;
  double best_ = std::numeric_limits<double>::max();
};

bench::Told run(const Link& link, const Topology& topology, const std::string& samples) {
  if (link.hosts.hosts > 1) return bench::VirtualJob(link.hosts).run_per_node({topology.word, samples, link.name});
  const bench::CommandOutput output = bench::run_command(
      {bench::own_path(), "--nproc-per-node=2", bench::launched_word, topology.word, samples, link.name},
      dtrain::Deadline::after(std::chrono::seconds(300)));
  if (!output.succeeded) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job in shared memory failed");
  }
  return bench::Told::from(output.text);
}

void measure(const Link& link, const std::string& samples, bench::ResultRows& rows) {
  std::vector<Report> reports;
  for (const Topology& topology : topologies(link)) {
    reports.emplace_back(link, topology, run(link, topology, samples), rows);
  }
  for (const Report& report : reports) {
    double best = std::numeric_limits<double>::max();
    for (const char* const variant : report.topology().variants) {
      for (const Report& other : reports) {
        if (std::string(variant) == other.topology().name) best = std::min(best, other.best());
      }
    }
    report.print_goal(best);
  }
  if (link.hosts.hosts > 1 && link.hosts.ranks_per_host == 1) reports.front().print_goal_of_the_longer();
}

void measure_links(const bench::Options& options, bench::ResultRows& rows) {
  const std::string samples = std::to_string(options.samples > 0 ? options.samples : 5);
  const std::vector<Link> all = links();
  measure(all.front(), samples, rows);
  if (!bench::VirtualJob::possible()) {
    std::printf("virtual hosts cannot be made here: nothing was measured between hosts\n");
    return;
  }
#if DTRAIN_WITH_GLOO
  for (std::size_t i = 1; i < all.size(); ++i) {
    measure(all[i], samples, rows);
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
