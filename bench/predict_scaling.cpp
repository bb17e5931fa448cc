// What a model of a step (bench/scaling) predicts for data-parallel training on up to 1,024 ranks: no measurement.

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/ddp_step/models.hpp"
#include "bench/goal.hpp"
#include "bench/scaling/chart.hpp"
#include "bench/scaling/cluster.hpp"
#include "bench/scaling/compression.hpp"
#include "bench/scaling/ready_times.hpp"
#include "bench/write_file.hpp"
#include "dtrain/ddp/planning/plan_search.hpp"

namespace {

constexpr const char* usage_line =
    "[--link-gbit=100] [--latency-us=20] [--efficiency=0.93] [--ranks-per-host=8] [--inside-gbytes=100] [--svg=FILE] "
    "[--sent-share=S --compress-gbytes=C: a gradient hook that sends S of the bytes, and compresses C GB of gradients "
    "in "
    "a second]";
constexpr int most_ranks = 1024;

/// What is assumed, each a flag.
struct Assumptions {
  std::map<std::string, double> values{{"--link-gbit", 100},    {"--latency-us", 20},     {"--efficiency", 0.93},
                                       {"--ranks-per-host", 8}, {"--inside-gbytes", 100}, {"--sent-share", 1},
                                       {"--compress-gbytes", 1}};
  std::string svg{};

  /// @throws Error (usage)
  static Assumptions parse(int argc, char** argv) {
    Assumptions given;
    for (int i = 1; i < argc; ++i) {
      const std::string_view argument = argv[i];
      const std::size_t equals = argument.find('=');
      const std::string flag(argument.substr(0, equals));
      const std::string_view value = equals == std::string_view::npos ? "" : argument.substr(equals + 1);
      if (flag == "--svg" && !value.empty()) {
        given.svg = value;
        continue;
      }
      double number = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      const auto known = given.values.find(flag);
      if (known == given.values.end() || error != std::errc() || end != value.data() + value.size() || !(number > 0)) {
        throw dtrain::Error(dtrain::Errc::usage, "'" + std::string(argument) + "' is no flag with a positive number");
      }
      known->second = number;
    }
    return given;
  }

  double at(const char* flag) const { return values.at(flag); }

  bool has_hook() const { return at("--sent-share") < 1; }
  bench::Compression hook() const { return {at("--sent-share"), at("--compress-gbytes") * 1e9}; }

  /// Hosts are filled one after the other.
  bench::Cluster cluster(int ranks) const {
    const int on_host = std::min(ranks, static_cast<int>(at("--ranks-per-host")));
    return {ranks / on_host,
            on_host,
            {at("--latency-us") * 1e-6, at("--link-gbit") * 1e9 / 8 * at("--efficiency")},
            at("--inside-gbytes") * 1e9};
  }
};

/// A model, and how long one rank computes for a step; a third of it forward.
struct Training {
  bench::ModelShapes model;
  double compute_seconds;
};

struct Paths {
  const char* name;
  double (*seconds)(const bench::Cluster&, double);
};

/// Of a step. @param hook null: without
double step_seconds(const Training& training, const bench::Cluster& cluster, const Paths& paths,
                    const bench::Compression* hook = nullptr) {
  std::vector<dtrain::ddp::GradientSize> sizes;
  for (const std::int64_t size : training.model.sizes) {
    sizes.push_back({static_cast<std::size_t>(size) * sizeof(float), dtrain::DType::f32, {}});
  }
  const double compute = training.compute_seconds;
  const std::vector<double> ready = bench::evenly_ready(sizes.size(), compute / 3, compute * 2 / 3);
  const auto plain = [&](double bytes) { return paths.seconds(cluster, bytes); };
  return dtrain::ddp::model_step(dtrain::ddp::plan_buckets(sizes), ready, compute,
                                 [&](std::size_t bucket) {
                                   const auto bytes = static_cast<double>(bucket);
                                   return hook == nullptr ? plain(bytes) : hook->seconds(bytes, plain);
                                 })
      .step;
}

/// A line of a table: `value(ranks)` for 1, 2, 4, ... ranks.
template <class Value>
bench::ChartLine print_line(const std::string& name, Value value) {
  bench::ChartLine line{name, {}};
  std::printf("%-24s", name.c_str());
  for (int ranks = 1; ranks <= most_ranks; ranks *= 2) {
    line.points.emplace_back(ranks, value(ranks));
    std::printf("%6.3f", line.points.back().second);
  }
  std::printf("\n");
  return line;
}

void print_hook(const Assumptions& assumptions, const std::vector<Training>& trainings,
                const std::vector<Paths>& all_paths) {
  const bench::Compression hook = assumptions.hook();
  std::printf("\nthe step with the hook, as a multiple of the step without it; below 1 it pays\n");
  for (const Training& training : trainings) {
    for (const Paths& paths : all_paths) {
      print_line(training.model.name + ", " + paths.name, [&](int ranks) {
        const bench::Cluster cluster = assumptions.cluster(ranks);
        return step_seconds(training, cluster, paths, &hook) / step_seconds(training, cluster, paths);
      });
    }
  }
  std::printf(
      "between two hosts it shortens the communication if their link carries less than %.3g Gbit/s, between many "
      "%.3g\n",
      hook.pays_below(2) * 8e-9, hook.pays_below(most_ranks) * 8e-9);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_benchmark("predict_scaling", usage_line, argc, argv, [&] {
    const Assumptions assumptions = Assumptions::parse(argc, argv);
    const std::vector<Training> trainings{{bench::resnet50(), 0.1}, {bench::gpt2(), 0.1}};
    const std::vector<Paths> all_paths{{"Hierarchical", bench::hierarchical_seconds},
                                       {"Ring", bench::ring_seconds},
                                       {"Flat", bench::halving_doubling_seconds}};

    std::printf(
        "predicted, not measured: the share of ideal throughput when a rank computes for 100 ms a step, with\n");
    for (const auto& [flag, value] : assumptions.values) {
      std::printf("  %s=%g", flag.c_str(), value);
    }
    std::printf("\n%-24s", "ranks");
    for (int ranks = 1; ranks <= most_ranks; ranks *= 2) {
      std::printf("%6d", ranks);
    }
    std::printf("\n");
    bench::Chart chart("Predicted, not measured: share of ideal throughput");
    for (const Training& training : trainings) {
      for (const Paths& paths : all_paths) {
        chart.add(print_line(training.model.name + ", " + paths.name, [&](int ranks) {
          return training.compute_seconds / step_seconds(training, assumptions.cluster(ranks), paths);
        }));
      }
    }
    if (assumptions.has_hook()) print_hook(assumptions, trainings, all_paths);
    if (!assumptions.svg.empty()) {
      bench::write_file(assumptions.svg, chart.svg());
    }
  });
}
