// What a sharded optimizer costs and saves: a step with ShardedOptimizer and AdamW, in both stages, beside one of plain
// backward() after which every rank runs AdamW on all weights. In shared memory on published models, whose backward
// pass only announces the gradients; and on two virtual hosts joined at 1 Gbit/s with the backward pass of
// overlap_bench.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <thread>
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
#include "bench/shape_model.hpp"
#include "dtrain/core/process/available_memory.hpp"

namespace {

constexpr const char* bench_name = "sharded_bench";
constexpr const char* usage_line = "[--ranks=2,4] [--samples=N] [--json=FILE]";
constexpr const char* overlapped = "layers";  ///< the model of overlap_bench, with its computing

/// With gradients of its own, which each step copies: zero::Gradients binds none.
class OwningModel : private bench::ShapeModel {
 public:
  explicit OwningModel(const std::vector<std::int64_t>& sizes) : ShapeModel(sizes), gradients_(elements()) {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      const dtrain::Shape shape = parameters()[i].value.shape;
      bind_gradient(i, dtrain::tensor_view(&gradients_[offset], shape));
      offset += static_cast<std::size_t>(shape.element_count());
    }
  }

  using ShapeModel::announce;
  using ShapeModel::gradient;
  using ShapeModel::parameters;

 private:
  std::vector<float> gradients_;
};

/// One rank: its lines go to the benchmark.
template <class P>
class ShardRank {
 public:
  ShardRank(dtrain::ProcessGroup<P> group, const std::vector<std::int64_t>& sizes, bool computes)
      : group_(std::move(group)),
        computes_(computes),
        whole_model_(sizes),
        sharded_model_(sizes),
        divided_model_(sizes),
        whole_(whole_model_, group_),
        sharded_(sharded_model_, group_),
        divided_(divided_model_, group_),
        means_(whole_model_.elements()),
        squares_(whole_model_.elements()) {}

  /// The first sample of each is a warm-up.
  void measure(int samples) {
    sharded_.backward([this](const dtrain::Ready& ready) { run_backward(sharded_model_, ready); });
    whole_.backward([this](const dtrain::Ready& ready) { run_backward(whole_model_, ready); });
    divided_.backward([this](const dtrain::Ready& ready) { run_backward(divided_model_, ready); });
    dtrain::ShardedOptimizer sharded{sharded_, rule_};
    dtrain::ShardedOptimizer divided{divided_, rule_, dtrain::zero::Gradients{}};
    for (int sample = 0; sample <= samples; ++sample) {
      for (int turn = 0; turn < 3; ++turn) {
        switch ((sample + turn) % 3) {
          case 0:
            measure_step("whole", sample, whole_model_, [&] {
              whole_.backward([this](const dtrain::Ready& ready) { run_backward(whole_model_, ready); });
              update_whole(static_cast<std::uint64_t>(sample) + 1);
            });
            break;
          case 1:
            measure_step("sharded", sample, sharded_model_, [&] {
              sharded_.backward([this](const dtrain::Ready& ready) { run_backward(sharded_model_, ready); }, sharded);
            });
            break;
          default:
            measure_step("divided", sample, divided_model_, [&] {
              divided_.backward([this](const dtrain::Ready& ready) { run_backward(divided_model_, ready); }, divided);
            });
        }
      }
      check(sharded_model_);
      check(divided_model_);
    }
    bench::tell_fact("state", static_cast<double>(sharded.state_bytes()));
    bench::tell_fact("gradients", static_cast<double>(divided.gradient_bytes()));
    bench::tell_fact("arena", static_cast<double>(divided_.plan().arena_bytes));
  }

 private:
  template <class Model, class Step>
  void measure_step(const char* name, int sample, Model& model, Step step) {
    fill(model, sample);
    group_.barrier();
    const std::int64_t begin = bench::now_nanoseconds();
    step();
    const std::int64_t end = bench::now_nanoseconds();
    if (sample > 0) {
      bench::tell_interval(name, sample, {begin, end});
    }
  }

  template <class Model>
  void run_backward(const Model& model, const dtrain::Ready& ready) const {
    if (!computes_) {
      model.announce(ready);
      return;
    }
    auto wake = std::chrono::steady_clock::now();
    for (std::size_t i = bench::layers; i > 0; --i) {
      wake += bench::layer_time;
      std::this_thread::sleep_until(wake);
      ready(i - 1);
    }
  }

  void update_whole(std::uint64_t step) {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < whole_model_.parameters().size(); ++i) {
      const std::span<float> weights = whole_model_.parameters()[i].value.template as<float>();
      rule_(weights, whole_model_.gradient(i),
            {std::span(means_).subspan(offset, weights.size()), std::span(squares_).subspan(offset, weights.size())},
            {step, i});
      offset += weights.size();
    }
  }

  template <class Model>
  void fill(Model& model, int sample) {
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const auto value = static_cast<float>(group_.rank() + sample % 5) + static_cast<float>(i % 7);
      std::ranges::fill(model.gradient(i), value);
    }
  }

  /// Both trainings have the same weights, to the last bits.
  template <class Model>
  void check(Model& model) {
    for (std::size_t i = 0; i < whole_model_.parameters().size(); ++i) {
      const auto a = whole_model_.parameters()[i].value.template as<float>();
      const auto b = model.parameters()[i].value.template as<float>();
      if (!std::ranges::equal(a, b, [](float one, float other) { return std::abs(one - other) <= 1e-6F; })) {
        throw dtrain::Error(dtrain::Errc::protocol, "the sharded optimizer's weights are wrong");
      }
    }
  }

  dtrain::ProcessGroup<P> group_;
  bool computes_;
  dtrain::optimizers::AdamW rule_{};
  bench::ShapeModel whole_model_;
  bench::ShapeModel sharded_model_;
  OwningModel divided_model_;
  dtrain::DistributedDataParallel<bench::ShapeModel, P> whole_;
  dtrain::DistributedDataParallel<bench::ShapeModel, P> sharded_;
  dtrain::DistributedDataParallel<OwningModel, P> divided_;
  std::vector<float> means_;  ///< of the whole optimizer
  std::vector<float> squares_;
};

/// Its last arguments are the number of samples and the model.
template <class P>
int run_rank(int argc, char** argv) {
  return dtrain::run<P>(argc, argv, [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    const int samples = bench::positive("samples", arguments[arguments.size() - 2]);
    const std::string model = arguments.back();
    const std::vector<std::int64_t> sizes = model == overlapped
                                                ? std::vector<std::int64_t>(bench::layers, bench::layer_elements)
                                                : bench::model_named(model).sizes;
    ShardRank<P>(std::move(group), sizes, model == overlapped).measure(samples);
    return 0;
  });
}

int run_launched([[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
  if (bench::is_launched_with("shared_memory", argc, argv)) {
    return run_rank<bench::Policy>(argc, argv);
  }
#if DTRAIN_WITH_MPI
  if (bench::is_launched_with("mpi", argc, argv)) {
    return run_rank<bench::MpiPolicy>(argc, argv);
  }
#endif
#if DTRAIN_WITH_GLOO
  if (bench::is_launched_with("gloo", argc, argv)) {
    return run_rank<bench::GlooPolicy>(argc, argv);
  }
#endif
  std::fprintf(stderr, "%s: this program was built without the backend that it was started with\n", bench_name);
  return 2;
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
  add_row("ShardedOptimizer, AdamW", sharded, state, all);
  add_row("zero::Gradients, AdamW", bench::median(told.seconds["divided"]), state, gradients);
  bench::print_goal(bench::text_of(most, " times the step with AdamW on every rank, at most"), sharded <= most * whole,
                    bench::text_of(sharded / whole, " times"));
  bench::print_goal("a rank's state at most 1.02 times 8 bytes for each weight, divided by the ranks",
                    state <= 1.02 * formula, bench::text_of(state / formula, " times"));
  bench::print_goal(
      "with zero::Gradients, its gradients at most 1.02 times 4 bytes for each, divided by the ranks, and "
      "the two largest buckets",
      gradients <= 1.02 * (all / ranks + two_buckets),
      bench::text_of(gradients / (all / ranks + two_buckets), " times"));
}

void measure_one_host(const bench::Options& options, bench::ResultRows& rows) {
  const int samples = options.samples > 0 ? options.samples : 9;
  for (const int ranks : options.ranks.empty() ? std::vector<int>{2, 4} : options.ranks) {
    for (const bench::ModelShapes& model : {bench::resnet50(), bench::gpt2()}) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(model.elements()) * sizeof(float);
      if (static_cast<std::uint64_t>(ranks) * bytes * 14 > dtrain::available_memory_bytes()) {
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

void measure_two_hosts(const bench::Options& options, bench::ResultRows& rows) {
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
    if (!options.json.empty()) {
      rows.write_json(options.json);
    }
  });
}
