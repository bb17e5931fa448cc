// How much of the communication a backward pass hides: 50 layers of 2 MiB that take 18 ms each without using the core,
// on two virtual hosts joined at 1 Gbit/s; PyTorch's DDP on gloo does the same beside it. With --device=cuda ranks of
// one host whose gradients are on GPUs (bench/overlap/cuda_overlap.cpp).

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/goal.hpp"
#include "bench/hosts/policies.hpp"
#include "bench/hosts/virtual_job.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/overlap/cuda_overlap.hpp"
#include "bench/overlap/overlap_rank.hpp"
#include "bench/peer_python.hpp"
#include "bench/result_rows.hpp"
#include "bench/scaling/ready_times.hpp"
#include "bench/shape_model.hpp"
#include "dtrain/ddp/planning/plan_search.hpp"

namespace {

using bench::all_bytes;
using bench::compute_seconds;
using bench::layer_elements;
using bench::layers;
using bench::no_timeline;
constexpr const char* bench_name = "overlap_bench";
constexpr const char* usage_line =
    "[--device=host|cuda] [--ranks=2,4, of cuda] [--samples=N] [--timeline=FILE, of a step on Gloo] [--json=FILE]";
/// The step that the model predicts from what the communication alone was measured to take.
double predicted_seconds(double communication) {
  const std::vector<dtrain::ddp::GradientSize> sizes(layers, {layer_elements * sizeof(float), dtrain::DType::f32, {}});
  const double seconds_for_each_byte = communication / static_cast<double>(all_bytes);
  return dtrain::ddp::model_step(dtrain::ddp::plan_buckets(sizes), bench::evenly_ready(layers, 0, compute_seconds),
                                 compute_seconds,
                                 [&](std::size_t bytes) { return static_cast<double>(bytes) * seconds_for_each_byte; })
      .step;
}

/// One system's row. @param compared_with dtrain's step, of a peer's row
void report(const char* system, const char* backend, bench::Told told, double compared_with, bench::ResultRows& rows) {
  const bench::VirtualHosts hosts;
  const double step = bench::median(told.seconds["step"]);
  const double communication = bench::median(told.seconds["communication"]);
  const double times_the_longer = step / std::max(communication, compute_seconds);
  bench::Row row{bench_name, system, "step", hosts.ranks(), hosts.hosts, all_bytes, step, told.seconds["step"].size()};
  row.with("backend", backend).with("communication_seconds", communication).with("times_the_longer", times_the_longer);
  if (!told.facts["buckets"].empty()) {
    row.with("plan", bench::text_of(told.facts["buckets"].front(), " buckets"));
  }
  if (compared_with > 0) {
    row.with("ratio", step / compared_with);
    rows.add(row);
    return;
  }
  rows.add(row);
  const double predicted = predicted_seconds(communication);
  bench::print_goal("a step at most 1.10 times the longer of compute and communication", times_the_longer <= 1.10,
                    bench::text_of(times_the_longer, " times"));
  bench::print_goal("the model of a step is right within 10%", std::abs(step / predicted - 1) <= 0.10,
                    bench::text_of(predicted, " s predicted"));
}

/// A rank of dtrain's: its arguments are the backend's name, the number of samples and where the timeline goes.
template <class P>
int run_rank(int argc, char** argv) {
  return dtrain::run<P>(argc, argv, [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    const std::string samples = arguments[arguments.size() - 2];
    bench::OverlapRank<P>(std::move(group), arguments.back()).measure(bench::positive("samples", samples));
    return 0;
  });
}

int run_launched(int argc, char** argv) {
#if DTRAIN_BENCH_CUDA
  if (bench::is_launched_with("cuda", argc, argv)) {
    return bench::run_cuda_overlap_rank(argc, argv);
  }
#endif
  return bench::run_on_named_backend(bench_name, argc, argv,
                                     []<class P>(int count, char** words) { return run_rank<P>(count, words); });
}

void measure_hosts(const bench::Options& options, bench::ResultRows& rows) {
  const std::string samples = std::to_string(options.samples > 0 ? options.samples : 5);
  if (!bench::VirtualJob::possible()) {
    std::printf("virtual hosts cannot be made here: nothing was measured\n");
    return;
  }
  const bench::VirtualJob job{bench::VirtualHosts{}};
  double step = 0;
#if DTRAIN_WITH_MPI
  bench::Told by_mpi = job.run_mpi({"mpi", samples, no_timeline});
  step = bench::median(by_mpi.seconds["step"]);
  report("dtrain", "mpi", std::move(by_mpi), 0, rows);
#else
  std::printf("dtrain on Mpi: built without MPI\n");
#endif
#if DTRAIN_WITH_GLOO
  bench::Told by_gloo = job.run_per_node({"gloo", samples, options.timeline.empty() ? no_timeline : options.timeline});
  step = bench::median(by_gloo.seconds["step"]);
  report("dtrain", "gloo", std::move(by_gloo), 0, rows);
#else
  std::printf("dtrain on Gloo: built without Gloo\n");
#endif
  const bench::PeerPython python("import torch.distributed");
  if (python.present()) {
    const std::string peer = std::string(DTRAIN_BENCH_DIR) + "/peers/overlap_pytorch.py";
    report("pytorch", "gloo",
           job.run_on_each({python.path(), peer, "{host}", "2", bench::VirtualJob::first_host, samples}), step, rows);
  } else {
    std::printf("pytorch: missing: no torch in %s; DTRAIN_PEER_PYTHON names a Python that has it\n",
                python.looked_in().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return run_launched(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {}, {"--device", "--timeline"});
    bench::ResultRows rows;
    if (options.device == "cuda") {
#if DTRAIN_BENCH_CUDA
      bench::measure_cuda_overlap(bench_name, options, rows);
#endif
    } else {
      measure_hosts(options, rows);
    }
    rows.write_json(options.json);
  });
}
