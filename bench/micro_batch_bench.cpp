// What a step over micro-batches costs beside a step with as many passes that dtrain adds up under no_sync(), on a
// model of 20 layers of 100,000 floats whose passes only write the gradients. The weights of the first have the same
// bits on any number of ranks; those of the second have not.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/goal.hpp"
#include "bench/launched_job.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"
#include "bench/shape_model.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* bench_name = "micro_batch_bench";
constexpr const char* usage_line = "[--ranks=1,2,4] [--backend=shared_memory|mpi] [--samples=N] [--json=FILE]";
constexpr std::size_t micro_batches = 8;
constexpr int layers = 20;
constexpr std::int64_t elements = 100'000;

template <class Policy>
int run_rank(const dtrain::ProcessGroup<Policy>& group, int samples) {
  bench::ShapeModel model(std::vector<std::int64_t>(layers, elements));
  dtrain::DistributedDataParallel ddp{model, group};
  const dtrain::DistributedSampler sampler{group,
                                           {.dataset_size = 64, .global_batch = 64, .micro_batches = micro_batches}};
  const dtrain::SampleSteps steps = sampler.steps(0);
  const auto pass = [&](dtrain::Ready ready) {
    for (std::size_t i = layers; i-- > 0;) {
      std::ranges::fill(model.gradient(i), 1.0F);
      ready(i);
    }
  };
  const std::size_t passes =
      (micro_batches + static_cast<std::size_t>(group.world_size()) - 1) / static_cast<std::size_t>(group.world_size());
  const auto over_micro_batches = [&] {
    ddp.backward(steps[0], [&](const dtrain::MicroBatch&, dtrain::Ready ready) { pass(ready); });
  };
  const auto under_no_sync = [&] {
    for (std::size_t i = 1; i < passes; ++i) {
      const auto held = ddp.no_sync(dtrain::Adds::wrapper);
      ddp.backward(pass);
    }
    ddp.backward(pass);
  };
  std::vector<double> micro, plain;  // seconds
  for (int sample = 0; sample < samples + 1; ++sample) {
    for (std::vector<double>* seconds : {&plain, &micro}) {  // they take turns
      group.barrier();
      const auto begin = Clock::now();
      for (int i = 0; i < 5; ++i)
        seconds == &plain ? under_no_sync() : over_micro_batches();
      if (sample > 0) seconds->push_back(std::chrono::duration<double>(Clock::now() - begin).count() / 5);
    }
  }
  if (group.rank() == 0) {
    std::printf("result no_sync %zu %.9g\n", passes, bench::median(plain));
    std::printf("result micro_batches %zu %.9g\n", passes, bench::median(micro));
  }
  return 0;
}

int run_launched(int argc, char** argv) {
  const int samples = bench::positive("samples", argv[argc - 1]);
#if DTRAIN_WITH_MPI
  if (bench::is_launched_with("mpi", argc, argv)) {
    using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Mpi>;
    return dtrain::run<Policy>(argc, argv,
                               [samples](dtrain::ProcessGroup<Policy> group) { return run_rank(group, samples); });
  }
#endif
  return dtrain::run<bench::Policy>(
      argc, argv, [samples](dtrain::ProcessGroup<bench::Policy> group) { return run_rank(group, samples); });
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return run_launched(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {1, 2, 4}, {"--backend"});
    const int samples = options.samples > 0 ? options.samples : 11;
    const bool is_mpi = options.backend == "mpi";
    bench::ResultRows rows;
    for (const int ranks : options.ranks) {
      for (const std::vector<std::string>& result :
           bench::results_of_job(ranks, is_mpi, {is_mpi ? "mpi" : "shared_memory", std::to_string(samples)})) {
        rows.add({bench_name,
                  is_mpi ? "mpi" : "shared_memory",
                  result.at(0),
                  ranks,
                  1,
                  layers * elements * sizeof(float),
                  std::stod(result.at(2)),
                  static_cast<std::size_t>(samples),
                  {{"passes", result.at(1)}, {"milliseconds", std::to_string(std::stod(result.at(2)) * 1e3)}}});
      }
    }
    rows.write_json(options.json);
  });
}
