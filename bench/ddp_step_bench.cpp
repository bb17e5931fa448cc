// What a step adds to the reduction of its bytes: the backward pass only announces the gradients of a published model,
// so nothing overlaps. In turns with it, the same step that also measures the norm of the gradients, and one all-reduce
// of as many bytes in one arena. What the check of gradients in debug programs adds to a step that computes as little
// as a training can. And what a step adds to the computing of a real model: forward and backward passes of the
// transformer of examples/gpt2. With --device=cuda on GPUs over NCCL (bench/ddp_step/cuda_steps.cpp).

// A debug program, whose steps check gradients unless they say otherwise; all other code is as in a release.
#undef NDEBUG
#include "dtrain/core/debug_program.hpp"
#define NDEBUG

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "bench/all_reduce/protocol.hpp"
#include "bench/command.hpp"
#include "bench/ddp_step/checked_rank.hpp"
#include "bench/ddp_step/cuda_steps.hpp"
#include "bench/ddp_step/models.hpp"
#include "bench/goal.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"
#include "bench/shape_model.hpp"
#include "dtrain/core/process/control_groups.hpp"

#if DTRAIN_BENCH_EIGEN
#include "bench/ddp_step/transformer_rank.hpp"
#endif

namespace {

constexpr const char* bench_name = "ddp_step_bench";
constexpr const char* usage_line = "[--device=host|cuda] [--model=NAME] [--ranks=2,4] [--samples=N] [--json=FILE]";
constexpr int usual_samples = 15;
constexpr const char* transformer = "gpt2-example";
constexpr const char* with_check = "with-check";  // the model's rank trains with the check and without

/// One rank: its lines go to the benchmark.
class StepRank {
 public:
  StepRank(dtrain::ProcessGroup<bench::Policy> group, const std::vector<std::int64_t>& sizes)
      : group_(std::move(group)),
        model_(sizes),
        ddp_(model_, group_, {.check_ready = false}),
        channel_(dtrain::group::GroupAccess::of(group_).open_channel("bench")),
        memory_(channel_.allocate_blocking(bytes(), dtrain::Deadline::after(group_.timeout()))) {}

  /// The first sample of each is a warm-up.
  void measure(int samples) {
    for (int sample = 0; sample <= samples; ++sample) {
      fill(sample);
      for (int turn = 0; turn < 3; ++turn) {
        const int way = (sample + turn) % 3;
        group_.barrier();
        const std::int64_t begin = bench::now_nanoseconds();
        way == 0 ? reduce_at_once() : step({.measure_norm = way == 2});
        const std::int64_t end = bench::now_nanoseconds();
        if (sample > 0) {
          bench::tell_interval(way == 0 ? "whole" : way == 1 ? "step" : "measured", sample, {begin, end});
        }
      }
      check(sample);
    }
    bench::tell_fact("buckets", static_cast<double>(ddp_.statistics().buckets));
  }

 private:
  std::size_t bytes() const noexcept { return model_.elements() * sizeof(float); }
  std::span<float> whole() const { return {reinterpret_cast<float*>(memory_.data()), model_.elements()}; }

  void step(dtrain::StepOptions options) {
    ddp_.backward([this](dtrain::Ready ready) { model_.announce(ready); }, options);
  }

  void reduce_at_once() {
    const dtrain::BufferView view = dtrain::buffer_view(whole());
    channel_.enqueue(dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::average}, group_.stream());
    dtrain::stream::host::Event event;
    group_.stream().record(event);
    const auto result = event.block_until_complete(dtrain::Deadline::after(group_.timeout()));
    group_.check();
    if (result != dtrain::stream::WaitResult::complete || channel_.failure()) {
      throw dtrain::Error(dtrain::Errc::closed, "a reduction of the benchmark has failed");
    }
  }

  void fill(int sample) {
    for (std::size_t i = 0; i < model_.parameters().size(); ++i) {
      std::ranges::fill(model_.gradient(i), value(sample, i, static_cast<float>(group_.rank())));
    }
    std::ranges::fill(whole(), value(sample, 0, static_cast<float>(group_.rank())));
  }

  void check(int sample) {
    const float mean_rank = static_cast<float>(group_.world_size() - 1) / 2;
    bool right = true;
    for (std::size_t i = 0; i < model_.parameters().size(); ++i) {
      right = right && consists_of(model_.gradient(i), value(sample, i, mean_rank));
    }
    if (!right || !consists_of(whole(), value(sample, 0, mean_rank))) {
      throw dtrain::Error(dtrain::Errc::protocol, "a reduced gradient is wrong");
    }
  }

  static float value(int sample, std::size_t gradient, float rank) noexcept {
    return rank + static_cast<float>(sample % 5) + static_cast<float>(gradient % 7);
  }
  static bool consists_of(std::span<const float> values, float wanted) {
    return std::ranges::all_of(values,
                               [wanted](float value) { return value > wanted - 1e-4F && value < wanted + 1e-4F; });
  }

  dtrain::ProcessGroup<bench::Policy> group_;
  bench::ShapeModel model_;
  dtrain::DistributedDataParallel<bench::ShapeModel, bench::Policy> ddp_;
  bench::Policy::Backend::Communicator channel_;
  bench::Policy::Backend::Communicator::Allocation memory_;
};

bench::Told run_job(const std::string& model, int ranks, int samples, const char* way = "") {
  const bench::CommandOutput output =
      bench::run_command({bench::own_path(), "--nproc-per-node=" + std::to_string(ranks), bench::launched_word, model,
                          std::to_string(samples), way},
                         dtrain::Deadline::after(std::chrono::seconds(240)));
  bench::Told told = bench::Told::from(output.text);
  if (!output.succeeded || told.facts["buckets"].size() != static_cast<std::size_t>(ranks)) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job of " + std::to_string(ranks) + " ranks failed");
  }
  return told;
}

std::uint64_t bytes_of(const bench::ModelShapes& model) {
  return static_cast<std::uint64_t>(model.elements()) * sizeof(float);
}

/// Whether each rank may have the model's bytes four times; else says so.
bool has_memory_for(const bench::ModelShapes& model, int ranks) {
  const bool has_memory = static_cast<std::uint64_t>(ranks) * bytes_of(model) * 4 <= dtrain::available_memory_bytes();
  if (!has_memory) {
    std::printf("%d ranks with %s: left out, because the host has too little memory\n", ranks, model.name.c_str());
  }
  return has_memory;
}

void measure(const bench::ModelShapes& model, int ranks, int samples, bench::ResultRows& rows) {
  const std::uint64_t bytes = bytes_of(model);
  bench::Told told = run_job(model.name, ranks, samples);
  const double step = bench::median(told.seconds["step"]);
  const double whole = bench::median(told.seconds["whole"]);
  const auto row_of = [&](const char* system, const char* what, double seconds, std::size_t count) {
    bench::Row row{bench_name, system, what, ranks, 1, bytes, seconds, count};
    return row.with("model", model.name);
  };
  rows.add(row_of("dtrain", "step without overlap", step, told.seconds["step"].size())
               .with("plan", bench::text_of(told.facts["buckets"].front(), " buckets"))
               .with("gradients", static_cast<double>(model.sizes.size()))
               .with("times_limit", step / whole));
  const double measured = bench::median(told.seconds["measured"]);
  rows.add(row_of("dtrain", "step that measures the norm", measured, told.seconds["measured"].size())
               .with("times_step", measured / step));
  rows.add(row_of("limit", "one all_reduce", whole, told.seconds["whole"].size()).with("ratio", whole / step));
  bench::print_goal("a step at most 1.05 times one all_reduce of the same bytes", step <= 1.05 * whole,
                    bench::text_of(step / whole, " times"));
  bench::print_goal("measuring the norm of the gradients at most 1.03 times the step", measured <= 1.03 * step,
                    bench::text_of(measured / step, " times"));
}

/// The check of gradients (DdpOptions::check_ready) in a debug program, against the same training without it. Steps of
/// small models are short, and more of them are made.
void measure_check(const bench::ModelShapes& model, int ranks, int samples, bench::ResultRows& rows) {
  bench::Told told = run_job(model.name, ranks, model.elements() < 10'000'000 ? 20 * samples : samples, with_check);
  const double unchecked = bench::median(told.seconds["unchecked"]);
  const double checked = bench::median(told.seconds["checked"]);
  const auto row_of = [&](const char* what, double seconds) {
    bench::Row row{bench_name, "dtrain", what, ranks, 1, bytes_of(model), seconds, told.seconds["checked"].size()};
    return row.with("model", model.name);
  };
  rows.add(row_of("least training", unchecked));
  rows.add(row_of("the same, checked", checked).with("times_unchecked", checked / unchecked));
  bench::print_goal("the check of gradients in debug programs at most 1.05 times the least training",
                    checked <= 1.05 * unchecked, bench::text_of(checked / unchecked, " times"));
}

#if DTRAIN_BENCH_EIGEN

void measure_transformer(int ranks, int samples, bench::ResultRows& rows) {
  bench::Told told = run_job(transformer, ranks, samples);
  const double step = bench::median(told.seconds["step"]);
  const double computing = bench::median(told.seconds["computing"]);
  const std::uint64_t bytes = gpt2::parameter_count(bench::TransformerRank::shape) * sizeof(float);
  const auto row_of = [&](const char* system, const char* what, double seconds, const char* name) {
    bench::Row row{bench_name, system, what, ranks, 1, bytes, seconds, told.seconds[name].size()};
    return row.with("model", transformer);
  };
  rows.add(row_of("dtrain", "forward and step", step, "step")
               .with("plan", bench::text_of(told.facts["buckets"].front(), " buckets"))
               .with("times_limit", step / computing));
  rows.add(row_of("limit", "forward and backward", computing, "computing").with("ratio", computing / step));
  bench::print_goal("forward and step at most 1.05 times forward and backward alone", step <= 1.05 * computing,
                    bench::text_of(step / computing, " times"));
}

#else

void measure_transformer(int ranks, int, bench::ResultRows&) {
  std::printf("%d ranks with %s: left out, because this program was built without Eigen (libeigen3-dev)\n", ranks,
              transformer);
}

#endif

/// One rank of a job. @returns the exit code
int run_step_rank(dtrain::ProcessGroup<bench::Policy> group, dtrain::Arguments arguments) {
  if (arguments.size() < 4) {
    return 2;
  }
  const std::string model = arguments[2];
  const int samples = bench::positive("samples", arguments[3]);
#if DTRAIN_BENCH_EIGEN
  if (model == transformer) {
    bench::TransformerRank(std::move(group)).measure(samples);
    return 0;
  }
#endif
  const std::vector<std::int64_t> sizes = bench::model_named(model).sizes;
  if (arguments.size() > 4 && std::string_view(arguments[4]) == with_check) {
    bench::CheckedRank(group, sizes).measure(samples);
  } else {
    StepRank(std::move(group), sizes).measure(samples);
  }
  return 0;
}

void measure_host(const bench::Options& options, bench::ResultRows& rows) {
  const int samples = options.samples > 0 ? options.samples : usual_samples;
  for (const int ranks : options.ranks.empty() ? std::vector<int>{2, 4} : options.ranks) {
    for (const bench::ModelShapes& model : bench::models_of(options.model)) {
      if (has_memory_for(model, ranks)) measure(model, ranks, samples, rows);
    }
    for (const bench::ModelShapes& model : bench::with_examples(options.model)) {
      if (has_memory_for(model, ranks)) measure_check(model, ranks, samples, rows);
    }
    if (options.model.empty()) {
      measure_transformer(ranks, samples, rows);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
#if DTRAIN_BENCH_CUDA
  if (bench::is_launched_with("cuda", argc, argv) || bench::is_launched_with("adamw", argc, argv)) {
    return bench::run_cuda_step_rank(argc, argv);
  }
#endif
  if (bench::is_launched(argc, argv)) {
    return dtrain::run<bench::Policy>(argc, argv, run_step_rank);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {}, {"--device", "--model"});
    bench::ResultRows rows;
    if (options.device == "cuda") {
#if DTRAIN_BENCH_CUDA
      bench::measure_cuda_steps(bench_name, options, rows);
#endif
    } else {
      measure_host(options, rows);
    }
    rows.write_json(options.json);
  });
}
