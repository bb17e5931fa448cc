// How much of the communication a backward pass on a GPU hides where gradients go through the host: ranks of one host,
// who may share the GPU, over backend::Staged<backend::SharedMemory>.

#include "bench/overlap/cuda_overlap.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bench/all_reduce/protocol.hpp"
#include "bench/command.hpp"
#include "bench/cuda/machine.hpp"
#include "bench/cuda/model.hpp"
#include "bench/cuda/spin.hpp"
#include "bench/goal.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/phase.hpp"
#include "dtrain/backend/staged.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {
namespace {

using StagedPolicy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Staged<dtrain::backend::SharedMemory>>;

constexpr int layers = 50;
constexpr std::int64_t layer_elements = std::int64_t{512} * 1024;
constexpr std::uint64_t all_bytes = std::uint64_t{layers} * layer_elements * sizeof(float);
constexpr int usual_samples = 9;
constexpr std::chrono::seconds job_time(120);

class OverlapRank {
 public:
  explicit OverlapRank(dtrain::ProcessGroup<StagedPolicy> group)
      : group_(std::move(group)), model_(std::vector<std::int64_t>(layers, layer_elements)), ddp_(model_, group_) {}

  /// The first sample of each is a warm-up. @param layer_time none: the communication alone
  void measure(int samples, std::chrono::nanoseconds layer_time) {
    for (int sample = 0; sample <= samples; ++sample) {
      run("communication", sample, std::chrono::nanoseconds(0));
      if (layer_time.count() > 0) {
        run("step", sample, layer_time);
        time("compute", sample, [&] {
          for (int i = 0; i < layers; ++i) {
            compute(layer_time);
          }
        });
      }
    }
    tell_fact("buckets", static_cast<double>(ddp_.statistics().buckets));
  }

 private:
  void run(const char* kind, int sample, std::chrono::nanoseconds layer_time) {
    const float rank = static_cast<float>(group_.rank());
    const float mean_rank = static_cast<float>(group_.world_size() - 1) / 2;
    if (group_.rank() == 0) {
      tell_phase("sample " + std::to_string(sample) + ": " + kind);
    }
    model_.fill_blocking([&](std::size_t i) { return value(sample, i, rank); });
    time(kind, sample, [&] {
      dtrain::Step step = ddp_.begin();
      for (std::size_t i = layers; i > 0; --i) {
        if (layer_time.count() > 0) {
          compute(layer_time);
        }
        step.ready(i - 1, compute_.ref().handle());
      }
      step.finish();
    });
    model_.check_blocking([&](std::size_t i) { return value(sample, i, mean_rank); });
  }

  void compute(std::chrono::nanoseconds layer_time) {
    dtrain::stream::cuda::check(enqueue_spin(compute_.ref().native(), layer_time), "starting a kernel that spins");
  }

  template <class Enqueue>
  void time(const char* kind, int sample, Enqueue enqueue) {
    group_.barrier();
    const std::int64_t begin = now_nanoseconds();
    enqueue();
    dtrain::stream::cuda::check(cudaStreamSynchronize(compute_.ref().native()), "cudaStreamSynchronize");
    const std::int64_t end = now_nanoseconds();
    if (sample > 0) {
      tell_interval(kind, sample, {begin, end});
    }
  }

  static float value(int sample, std::size_t gradient, float rank) noexcept {
    return rank + static_cast<float>(sample % 5) + static_cast<float>(gradient % 7);
  }

  dtrain::ProcessGroup<StagedPolicy> group_;
  CudaModel model_;
  dtrain::stream::cuda::Stream compute_;
  dtrain::DistributedDataParallel<CudaModel, StagedPolicy> ddp_;
};

Told told_by(int ranks, int samples, std::chrono::nanoseconds layer_time) {
  tell_phase(std::to_string(ranks) + " ranks" + (layer_time.count() > 0 ? ", which compute" : ""));
  const CommandOutput output = run_command({own_path(), "--nproc-per-node=" + std::to_string(ranks), launched_word,
                                            "cuda", std::to_string(samples), std::to_string(layer_time.count())},
                                           dtrain::Deadline::after(job_time));
  Told told = Told::from(output.text);
  if (!output.succeeded || told.facts["buckets"].size() != static_cast<std::size_t>(ranks)) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job of " + std::to_string(ranks) + " ranks failed, or took longer " +
                                                    "than " + std::to_string(job_time.count()) + " s");
  }
  return told;
}

/// Layers compute for as long as their communication alone takes: a step cannot hide more, nor have it easier.
void measure(const char* bench_name, const CudaMachine& machine, int ranks, int samples, ResultRows& rows) {
  if (ranks > machine.devices) {
    ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  }
  const double alone = median(told_by(ranks, 3, std::chrono::nanoseconds(0)).seconds["communication"]);
  Told told = told_by(ranks, samples, std::chrono::nanoseconds(static_cast<std::int64_t>(alone * 1e9) / layers));
  const double step = median(told.seconds["step"]);
  const double compute = median(told.seconds["compute"]);
  const double communication = median(told.seconds["communication"]);
  const double hidden = 100 * (1 - (step - compute) / communication);
  Row row{bench_name, "dtrain", "step", ranks, 1, all_bytes, step, told.seconds["step"].size()};
  row.with("backend", "Staged<SharedMemory>").with("devices", std::min(ranks, machine.devices));
  row.with("plan", text_of(told.facts["buckets"].front(), " buckets")).with("compute_seconds", compute);
  row.with("communication_seconds", communication).with("hidden_percent", hidden);
  row.with("times_the_longer", step / std::max(communication, compute));
  rows.add(machine.describe(row));
}

}  // namespace

void measure_cuda_overlap(const char* bench_name, const Options& options, ResultRows& rows) {
  const CudaMachine machine = CudaMachine::look();
  std::printf("%s (%d of them), %s\n", machine.device.c_str(), machine.devices, machine.versions.c_str());
  for (const int ranks : options.ranks.empty() ? std::vector<int>{2, 4} : options.ranks) {
    measure(bench_name, machine, ranks, options.samples > 0 ? options.samples : usual_samples, rows);
  }
}

int run_cuda_overlap_rank(int argc, char** argv) {
  return dtrain::run<StagedPolicy>(
      argc, argv, [](dtrain::ProcessGroup<StagedPolicy> group, dtrain::Arguments arguments) {
        if (arguments.size() < 5) {
          return 2;
        }
        const std::chrono::nanoseconds layer_time(std::stoll(std::string(arguments[4])));
        OverlapRank(std::move(group)).measure(positive("samples", arguments[3]), layer_time);
        return 0;
      });
}

}  // namespace bench
